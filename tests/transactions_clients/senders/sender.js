// Pipelined transactions with kafkajs, as `transactions_clients.sender` describes them.
//
// kafkajs pipelines the sends that a program starts together. Each send here has the records of one partition.
// kafkajs 2.2 retries a send to several brokers as a whole if one broker returns a retriable error
// (CONCURRENT_TRANSACTIONS at the start of a transaction), and then appends the records of the other brokers twice.
'use strict'

const { Kafka, Partitioners, logLevel } = require('kafkajs')

const [bootstrap, transactionalId, topic, ...numbers] = process.argv.slice(2)
const [partitions, transactions, records, abortEvery, size] = numbers.map(Number)

const messagesOf = (transaction, partition) => {
  const messages = []
  for (let number = partition; number < records; number += partitions) {
    messages.push({ value: `${transaction} ${number} `.padEnd(size, 'x'), partition })
  }
  return messages
}

const main = async () => {
  // A transaction right after another one gets a retriable error; kafkajs would wait for 300 ms.
  const retry = { initialRetryTime: 30, retries: 20 }
  const kafka = new Kafka({ brokers: bootstrap.split(','), retry, logLevel: logLevel.NOTHING })
  const producer = kafka.producer({ transactionalId, createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  for (let transaction = 0; transaction < transactions; transaction++) {
    const opened = await producer.transaction()
    const sent = []
    for (let partition = 0; partition < partitions; partition++) {
      sent.push(opened.send({ topic, messages: messagesOf(transaction, partition) }))
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
