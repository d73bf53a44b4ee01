// Writes one record with kafkajs and reads it back. Arguments: bootstrap, topic, mechanism, user,
// password (the token for oauthbearer), file of the authority or empty. Prints the value, or exits with 1.
'use strict'

const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic, mechanism, username, password, ca] = process.argv.slice(2)
const sasl = mechanism === 'oauthbearer'
  ? { mechanism, oauthBearerProvider: async () => ({ value: password }) }
  : { mechanism, username, password }
const kafka = new Kafka({
  clientId: 'roundtrip', brokers: bootstrap.split(','), sasl, retry: { retries: 1 },
  ssl: ca ? { ca: [fs.readFileSync(ca)] } : false,
  authenticationTimeout: 10000, logLevel: logLevel.NOTHING,
})

const run = async () => {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 1 }], waitForLeaders: true })
  await admin.disconnect()
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: [{ value: 'v' }] })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `g-${topic}` })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await new Promise(resolve => consumer.run({
    eachMessage: async ({ message }) => { console.log(message.value.toString()); resolve() },
  }))
  await consumer.disconnect()
}

run().catch(error => { console.error(error.message); process.exit(1) })
