'use strict'

const { logLevel } = require('kafkajs')
const { say } = require('./lines')
require('./codecs')

const FETCH_WAIT_MS = 200

/**
 * kafkajs has events for an assignment, but none that says in which generation, and none for partitions that are taken
 * away. Its debug log has both: the answer to JoinGroup, and the request, with which it gives up all that it owned.
 */
const member = async (connect, groupId, topic, sessionTimeoutMs) => {
  const state = { generation: null, owned: [] }
  const kafka = connect({ logLevel: logLevel.DEBUG, logCreator: watchRebalances(state) })
  const consumer = kafka.consumer({
    groupId,
    sessionTimeout: Number(sessionTimeoutMs),
    heartbeatInterval: Number(sessionTimeoutMs) / 20,
    maxWaitTimeInMs: FETCH_WAIT_MS,
  })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    state.owned = payload.memberAssignment[topic] ?? []
    say({ event: 'assigned', generation: state.generation, owned: state.owned })
  })
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    console.error(payload.error)
    if (!payload.restart) process.exit(1)
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
      const { partition } = batch
      for (const { offset, key, value } of batch.messages) {
        say({ event: 'record', partition, offset: Number(offset), key: String(key), value: String(value) })
        resolveOffset(offset)
      }
      const next = String(Number(batch.lastOffset()) + 1)
      try {
        await consumer.commitOffsets([{ topic, partition, offset: next }])
      } catch (error) {
        // Without a type it is no answer of the broker: nobody knows what became of the commit.
        if (error.type === undefined) say({ event: 'commit_failed', partition, offset: Number(next) })
        throw error
      }
      say({ event: 'committed', partition, offset: Number(next) })
      await heartbeat()
    },
  })
  await inputEnds()
  await consumer.disconnect()
  say({ event: 'left' })
}

const watchRebalances = state => () => ({ level, namespace, log }) => {
  const { message } = log
  if (message.startsWith('Request JoinGroup(')) {
    if (state.owned.length > 0) {
      state.owned = []
      say({ event: 'revoked', owned: [] })
    }
  } else if (message.startsWith('Response JoinGroup(') && log.data?.generationId !== undefined) {
    state.generation = log.data.generationId
  } else if (level <= logLevel.WARN) {
    console.error(`${namespace}: ${message} ${log.error ?? ''}`)
  }
}

const inputEnds = () =>
  new Promise(resolve => {
    process.stdin.on('end', resolve)
    process.stdin.resume()
  })

module.exports = { member }
