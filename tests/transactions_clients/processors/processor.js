// Read-process-write with kafkajs, as a program under `transactions_clients.processor`.
// Arguments: bootstrap, transactional id, group, input topic, output topic, attempt.
'use strict'

const readline = require('readline')
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, transactionalId, groupId, source, target, attempt] = process.argv.slice(2)
const retry = { initialRetryTime: 50, maxRetryTime: 500, retries: 20 }
const kafka = new Kafka({ brokers: bootstrap.split(','), retry, logLevel: logLevel.NOTHING })
const answers = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]()

// Reports the point, and waits for the line that lets the processor continue.
const reach = async (point, number, count) => {
  process.stdout.write(`${point} ${number} ${count}\n`)
  if ((await answers.next()).done) process.exit(1)
}

const end = error => {
  process.stderr.write(String(error.stack || error) + '\n', () => process.exit(1))
}

const main = async () => {
  const producer = kafka.producer({ transactionalId, idempotent: true })
  await producer.connect()
  const consumer = kafka.consumer({
    groupId, sessionTimeout: 2000, heartbeatInterval: 200, maxWaitTimeInMs: 50,
    retry: { ...retry, restartOnFailure: async () => false },
  })
  consumer.on(consumer.events.CRASH, ({ payload }) => end(payload.error))
  await consumer.connect()
  await consumer.subscribe({ topic: source, fromBeginning: true })
  let number = 0
  const transact = async ({ batch, heartbeat }) => {
    const count = batch.messages.length
    const transaction = await producer.transaction()
    await reach('polled', number, count)
    await transaction.send({
      topic: target,
      messages: batch.messages.map(({ value }) => (
        { key: `${attempt}.${number}`, value, partition: batch.partition })),
    })
    await reach('sent', number, count)
    const offset = String(BigInt(batch.lastOffset()) + 1n)
    await transaction.sendOffsets({
      consumerGroupId: groupId,
      topics: [{ topic: source, partitions: [{ partition: batch.partition, offset }] }],
    })
    await reach('ready', number, count)
    await transaction.commit()
    await reach('ended', number, count)
    number += 1
    await heartbeat()
  }
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: true,
    // The process exits when a transaction fails.
    eachBatch: async context => {
      try {
        await transact(context)
      } catch (error) {
        end(error)
        await new Promise(() => {})
      }
    },
  })
}

main().catch(end)
