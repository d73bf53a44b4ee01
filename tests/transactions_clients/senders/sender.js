// Pipelined transactions with kafkajs, as `transactions_clients.sender` describes them. kafkajs waits for the
// response to each send; it pipelines the sends that a program starts together.
'use strict'

const { Kafka, Partitioners, logLevel } = require('kafkajs')

const [bootstrap, transactionalId, topic, ...numbers] = process.argv.slice(2)
const [partitions, transactions, records, abortEvery, size] = numbers.map(Number)
const PER_SEND = 25

const main = async () => {
  // A transaction that follows another at once is told to retry, after 300 ms by default.
  const retry = { initialRetryTime: 30, retries: 20 }
  const kafka = new Kafka({ brokers: bootstrap.split(','), retry, logLevel: logLevel.NOTHING })
  const producer = kafka.producer({ transactionalId, createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  for (let transaction = 0; transaction < transactions; transaction++) {
    const opened = await producer.transaction()
    const sent = []
    for (let start = 0; start < records; start += PER_SEND) {
      const messages = []
      for (let number = start; number < Math.min(records, start + PER_SEND); number++) {
        const value = `${transaction} ${number} `.padEnd(size, 'x')
        messages.push({ value, partition: number % partitions })
      }
      sent.push(opened.send({ topic, messages }))
    }
    await Promise.all(sent)
    if ((transaction + 1) % abortEvery) await opened.commit()
    else await opened.abort()
  }
  await producer.disconnect()
}

main().catch(error => {
  process.stderr.write(String(error.stack || error) + '\n', () => process.exit(1))
})
