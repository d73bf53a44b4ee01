// A group member with kafkajs, which has the classic protocol only. It gets its settings as a JSON argument and
// writes the lines that history.py in the parent folder describes.
//
// kafkajs has no callback for revoked partitions. It emits REBALANCING only for a rebalance that the coordinator
// requests. For any other rebalance it reports the duration afterwards, in GROUP_JOIN. A new member id in GROUP_JOIN
// means that the member was fenced before.
//
// A rebalance ends the fetches of kafkajs, but not the batches in its worker's queue, and a commit carries the
// current generation. So this program drops a batch that was fetched before a rebalance.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const HOLD_POLL_MS = 10
const orders = JSON.parse(process.argv[2])
const owned = new Set()

let memberId = null
let rebalances = 0

const now = () => Number(process.hrtime.bigint())

const say = (event, fields = {}) => fs.writeSync(1, JSON.stringify({ event, at: now(), ...fields }) + '\n')

const giveUp = (event, at = now()) => {
  rebalances += 1
  if (owned.size) say(event, { at, partitions: [...owned] })
  owned.clear()
}

const hold = async () => {
  if (!fs.existsSync(orders.hold)) return
  say('holding')
  while (fs.existsSync(orders.hold)) await new Promise(resolve => setTimeout(resolve, HOLD_POLL_MS))
}

const eachBatch = async ({ batch, resolveOffset, commitOffsetsIfNecessary, heartbeat, isRunning, isStale }) => {
  const { topic, partition } = batch
  const rebalancesBefore = rebalances
  const isOwned = () => owned.has(partition) && rebalances === rebalancesBefore
  for (let start = 0; start < batch.messages.length; start += orders.records_max) {
    if (!isRunning() || isStale() || !isOwned()) return
    const taken = batch.messages.slice(start, start + orders.records_max)
    for (const message of taken) {
      const value = message.value.toString()
      say('processed', { partition, offset: Number(message.offset), value })
      resolveOffset(message.offset)
    }
    await hold()
    if (!isOwned()) return
    const offset = String(Number(taken[taken.length - 1].offset) + 1)
    say('committing', { offsets: { [partition]: Number(offset) } })
    try {
      await commitOffsetsIfNecessary({ topics: [{ topic, partitions: [{ partition, offset }] }] })
    } catch (error) {
      say('refused', { reason: error.type || String(error) })
      throw error
    }
    say('committed')
    await heartbeat()
  }
}

const main = async () => {
  const kafka = new Kafka({
    clientId: 'member',
    brokers: orders.bootstrap.split(','),
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 50, maxRetryTime: 500, retries: 100 },
  })
  const consumer = kafka.consumer({
    groupId: orders.group,
    sessionTimeout: orders.session_ms,
    rebalanceTimeout: 4 * orders.session_ms,
    heartbeatInterval: orders.heartbeat_ms,
    maxWaitTimeInMs: 100,
    metadataMaxAge: 500,
  })
  consumer.on(consumer.events.REBALANCING, () => giveUp('revoked'))
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    if (payload.memberId === memberId) giveUp('revoked', now() - payload.duration * 1e6)
    else giveUp('lost')
    memberId = payload.memberId
    const partitions = payload.memberAssignment[orders.topic] || []
    partitions.forEach(number => owned.add(number))
    if (partitions.length) say('assigned', { partitions })
  })
  process.on('SIGTERM', async () => {
    await consumer.stop()
    giveUp('revoked')
    await consumer.disconnect()
    process.exit(0)
  })
  await consumer.connect()
  await consumer.subscribe({ topic: orders.topic, fromBeginning: true })
  await consumer.run({ autoCommit: false, eachBatchAutoResolve: false, eachBatch })
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
