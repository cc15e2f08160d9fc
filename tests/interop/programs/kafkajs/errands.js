'use strict'

// Short lives of clients in one process: see tests/interop/security/errands.py. SETTINGS is a file of JSON, what
// `new Kafka` takes; a token stands where kafkajs takes a function.

const { readFileSync } = require('node:fs')
const { createInterface } = require('node:readline')
const { Kafka, logLevel, Partitioners } = require('kafkajs')
const { say } = require('./lines')

const SOON_MS = 20_000
const FETCH_WAIT_MS = 100

const main = async () => {
  for await (const errand of createInterface({ input: process.stdin })) {
    const [verb, topic, what, settings] = errand.split('\t')
    const kafka = clientOf(JSON.parse(readFileSync(settings)))
    try {
      say({ value: await (verb === 'produce' ? produce : consume)(kafka, topic, what) })
    } catch (error) {
      say({ error: error.type ?? error.name, message: error.message })
    }
  }
}

const clientOf = ({ sasl: { token, ...sasl } = {}, ...settings }) => {
  if (token) sasl.oauthBearerProvider = async () => ({ value: token })
  // With more of them it goes on for half a minute before it says that it was not let in.
  const retry = { retries: 0 }
  return new Kafka({ ...settings, sasl: sasl.mechanism && sasl, retry, logLevel: logLevel.NOTHING })
}

const produce = async (kafka, topic, value) => {
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner })
  try {
    await producer.connect()
    await producer.send({ topic, messages: [{ value }] })
  } finally {
    await producer.disconnect()
  }
  return value
}

const consume = async (kafka, topic, groupId) => {
  const consumer = kafka.consumer({ groupId, maxWaitTimeInMs: FETCH_WAIT_MS })
  let tooLate
  try {
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    return await new Promise((resolve, reject) => {
      tooLate = setTimeout(() => reject(new Error('no record in time')), SOON_MS)
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      const eachMessage = async ({ partition, message }) => {
        const next = String(Number(message.offset) + 1)
        await consumer.commitOffsets([{ topic, partition, offset: next }])
        resolve(String(message.value))
      }
      consumer.run({ autoCommit: false, eachMessage }).catch(reject)
    })
  } finally {
    clearTimeout(tooLate)
    await consumer.disconnect()
  }
}

main()
