// kafkajs and its admin behind JSON lines: a request {"op": ..., ...} a line on standard input, an answer
// {"result": ...} or {"error": ...} a line on standard output. Bytes are base64. Ends with its input.
//
// kafkajs's consumer works in groups only. Records are read by the parts below it: its cluster finds the
// leader and its broker object sends Fetch, decodes batches and decompresses, as its consumer does.
// gzip is kafkajs's own; the other codecs are registered the way its documentation asks for.
'use strict'

const readline = require('readline')
const {
  Kafka, CompressionTypes, CompressionCodecs, ConfigResourceTypes, Partitioners, logLevel,
} = require('kafkajs')
const Cluster = require('kafkajs/src/cluster')
const { createLogger } = require('kafkajs/src/loggers')
const LoggerConsole = require('kafkajs/src/loggers/console')
const defaultSocketFactory = require('kafkajs/src/network/socketFactory')
const SnappyCodec = require('kafkajs-snappy')
const lz4 = require('lz4-napi')
const { ZstdCodec } = require('zstd-codec')

const WAIT_MS_MAX = 30000
const FETCH_BYTES = 16 << 20
const NONE = -1
const bootstrap = process.argv[2].split(',')

const types = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const registerCodecs = async () => {
  const zstd = await new Promise(resolve => ZstdCodec.run(module => resolve(new module.Streaming())))
  CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: async encoder => lz4.compressFrame(encoder.buffer),
    decompress: async buffer => lz4.decompressFrame(buffer),
  })
  CompressionCodecs[CompressionTypes.ZSTD] = () => ({
    compress: async encoder => Buffer.from(zstd.compress(encoder.buffer)),
    decompress: async buffer => Buffer.from(zstd.decompress(buffer)),
  })
}

const retry = { initialRetryTime: 50, retries: 8 }
const kafka = new Kafka({ clientId: 'driver', brokers: bootstrap, retry, logLevel: logLevel.NOTHING })
const admin = kafka.admin()
const producers = new Map()
let cluster = null

const toBytes = text => (text === null ? null : Buffer.from(text, 'base64'))
const toText = bytes => (bytes === null || bytes === undefined ? null : bytes.toString('base64'))

const toHeaders = pairs => {
  const headers = {}
  for (const [name, value] of pairs) {
    headers[name] = [...(headers[name] || []), toBytes(value)]
  }
  return headers
}

const fromHeaders = headers =>
  Object.entries(headers || {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).map(one => [name, toText(one)])
  )

const producerFor = async idempotent => {
  if (!producers.has(idempotent)) {
    const chosen = idempotent === null ? {} : { idempotent }
    const producer = kafka.producer({ ...chosen, createPartitioner: Partitioners.DefaultPartitioner })
    await producer.connect()
    producers.set(idempotent, producer)
  }
  return producers.get(idempotent)
}

const produce = async ({ topic, partition, records, codec, acks, idempotent }) => {
  const producer = await producerFor(idempotent)
  const messages = records.map(({ key, value, headers, timestamp }) => ({
    key: toBytes(key),
    value: toBytes(value),
    headers: toHeaders(headers),
    partition,
    ...(timestamp === null ? {} : { timestamp: String(timestamp) }),
  }))
  const answer = await producer.send({
    topic, messages, acks: acks === 'all' ? -1 : Number(acks), compression: types[codec],
  })
  const base = answer && answer.length ? Number(answer[0].baseOffset) : NONE
  return records.map((_, index) => (base < 0 ? NONE : base + index))
}

const connectedCluster = async () => {
  if (cluster === null) {
    cluster = new Cluster({
      logger: createLogger({ level: logLevel.NOTHING, logCreator: LoggerConsole }),
      socketFactory: defaultSocketFactory(),
      brokers: bootstrap,
      clientId: 'driver',
      connectionTimeout: 5000,
      enforceRequestTimeout: true,
      metadataMaxAge: 300000,
      allowAutoTopicCreation: false,
      retry,
    })
    await cluster.connect()
  }
  return cluster
}

const offsetAt = async (topic, partition, at) => {
  if (typeof at === 'number') {
    const found = await admin.fetchTopicOffsetsByTimestamp(topic, at)
    return Number(found.find(entry => entry.partition === partition).offset)
  }
  const found = (await admin.fetchTopicOffsets(topic)).find(entry => entry.partition === partition)
  return Number({ earliest: found.low, latest: found.high }[at])
}

const fetchOnce = async (topic, partition, offset) => {
  const connected = await connectedCluster()
  await connected.addTargetTopic(topic)
  const leaders = connected.findLeaderForPartitions(topic, [partition])
  const leader = await connected.findBroker({ nodeId: Object.keys(leaders)[0] })
  const { responses } = await leader.fetch({
    maxWaitTime: 500,
    minBytes: 1,
    maxBytes: FETCH_BYTES,
    isolationLevel: 0,
    topics: [{ topic, partitions: [{ partition, fetchOffset: String(offset), maxBytes: FETCH_BYTES }] }],
  })
  return responses[0].partitions[0].messages.filter(message => Number(message.offset) >= offset)
}

const consume = async ({ topic, partition, offset, time, count }) => {
  let next = time === undefined ? offset : await offsetAt(topic, partition, time)
  const deadline = Date.now() + WAIT_MS_MAX
  const found = []
  while (found.length < count && Date.now() < deadline) {
    for (const message of await fetchOnce(topic, partition, next)) {
      next = Number(message.offset) + 1
      found.push(message)
    }
  }
  return found.slice(0, count).map(message => ({
    key: toText(message.key),
    value: toText(message.value),
    headers: fromHeaders(message.headers),
    timestamp: Number(message.timestamp),
    offset: Number(message.offset),
  }))
}

const topicResource = topic => ({ type: ConfigResourceTypes.TOPIC, name: topic })

const operations = {
  produce,
  consume,
  create_topic: ({ topic, partitions, configs, replicas }) =>
    admin.createTopics({
      topics: [{
        topic,
        numPartitions: partitions,
        replicationFactor: replicas,
        configEntries: Object.entries(configs).map(([name, value]) => ({ name, value })),
      }],
    }),
  list_topics: () => admin.listTopics(),
  describe_topic: async ({ topic }) => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    return topics[0].partitions.map(({ partitionId, leader, replicas, isr }) => ({
      partition: partitionId, leader, replicas, isr,
    }))
  },
  delete_topic: ({ topic }) => admin.deleteTopics({ topics: [topic] }),
  create_partitions: ({ topic, total }) =>
    admin.createPartitions({ topicPartitions: [{ topic, count: total }] }),
  describe_config: async ({ topic }) => {
    const { resources } = await admin.describeConfigs({ resources: [topicResource(topic)] })
    const entries = resources[0].configEntries
    return Object.fromEntries(entries.map(({ configName, configValue }) => [configName, configValue]))
  },
  alter_config: ({ topic, configs }) =>
    admin.alterConfigs({
      validateOnly: false,
      resources: [{
        ...topicResource(topic),
        configEntries: Object.entries(configs).map(([name, value]) => ({ name, value })),
      }],
    }),
  delete_records: async ({ topic, partition, before }) => {
    // It looks the leader up in metadata that only an earlier call about this topic has loaded.
    await admin.fetchTopicOffsets(topic)
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(before) }] })
    return offsetAt(topic, partition, 'earliest')
  },
  describe_cluster: async () => {
    const { brokers, controller, clusterId } = await admin.describeCluster()
    return {
      cluster_id: clusterId,
      controller,
      brokers: brokers.map(({ nodeId, host, port }) => [nodeId, host, port]),
    }
  },
  list_offset: ({ topic, partition, at }) => offsetAt(topic, partition, at),
}

const main = async () => {
  await registerCodecs()
  await admin.connect()
  for await (const line of readline.createInterface({ input: process.stdin, terminal: false })) {
    const request = JSON.parse(line)
    let answer
    try {
      const result = await operations[request.op](request)
      answer = { result: result === undefined ? null : result }
    } catch (error) {
      answer = { error: String(error.stack || error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
