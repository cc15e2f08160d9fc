'use strict'

const { Partitioners } = require('kafkajs')
const codecs = require('./codecs')

const BATCH_RECORDS = 1000

const produce = async (connect, topic, codec, first, count) => {
  if (!(codec in codecs)) {
    throw new Error(`no codec ${codec}`)
  }
  const producer = connect().producer({ createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  const end = Number(first) + Number(count)
  for (let from = Number(first); from < end; from += BATCH_RECORDS) {
    const messages = []
    for (let number = from; number < Math.min(from + BATCH_RECORDS, end); number++) {
      messages.push({ key: `k${number}`, value: `${codec}-${number}` })
    }
    await producer.send({ topic, compression: codecs[codec], messages })
  }
  await producer.disconnect()
}

module.exports = { produce }
