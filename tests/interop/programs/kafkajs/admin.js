'use strict'

const assert = require('node:assert')
const { setTimeout } = require('node:timers/promises')
const {
  AclOperationTypes,
  AclPermissionTypes,
  AclResourceTypes,
  ConfigResourceTypes,
  ResourcePatternTypes,
} = require('kafkajs')
const { say } = require('./lines')

const RECORDS = 20
const SOON_MS = 30_000

/** Every call of the client's admin, on topics, configs, records, groups and the cluster. */
const admin = async (connect, prefix) => {
  const kafka = connect({ requestTimeout: 20000 })
  const calls = kafka.admin()
  await calls.connect()
  const topic = `${prefix}-topic`
  const groupId = `${prefix}-group`
  await topics(calls, topic)
  await configs(calls, topic)
  await records(kafka, calls, topic)
  await groups(kafka, calls, topic, groupId)
  await attempt('deleteTopics', () => calls.deleteTopics({ topics: [topic] }))
  await beyond(calls, topic)
  await calls.disconnect()
}

const topics = async (calls, topic) => {
  await attempt('describeCluster', async () => {
    const { brokers, clusterId } = await calls.describeCluster()
    assert(brokers.length > 0 && clusterId, 'no brokers, or no cluster id')
  })
  await attempt('createTopics', async () => {
    const configEntries = [{ name: 'retention.ms', value: '3600000' }]
    assert(await calls.createTopics({ topics: [{ topic, numPartitions: 2, configEntries }], waitForLeaders: true }))
  })
  await attempt('listTopics', () => soon(async () => (await calls.listTopics()).includes(topic)))
  await attempt('createPartitions', () => calls.createPartitions({ topicPartitions: [{ topic, count: 3 }] }))
  await attempt('fetchTopicMetadata', () =>
    soon(async () => {
      const { topics: [{ partitions }] } = await calls.fetchTopicMetadata({ topics: [topic] })
      return partitions.length === 3
    }),
  )
}

const configs = async (calls, topic) => {
  const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
  const describe = async (asked, includeSynonyms) => {
    const { resources: [{ configEntries }] } = await calls.describeConfigs({ includeSynonyms, resources: [asked] })
    return configEntries
  }
  const told = async () => {
    const entries = await describe(resource, false)
    return name => entries.find(each => each.configName === name).configValue
  }
  await attempt('describeConfigs topic', () => soon(async () => (await told())('retention.ms') === '3600000'))
  await attempt('describeConfigs broker', async () => {
    const { controller } = await calls.describeCluster()
    const broker = { type: ConfigResourceTypes.BROKER, name: String(controller) }
    assert((await describe(broker, true)).length > 0, 'none')
  })
  await attempt('alterConfigs', async () => {
    const configEntries = [{ name: 'max.message.bytes', value: '123456' }]
    await calls.alterConfigs({ validateOnly: false, resources: [{ ...resource, configEntries }] })
    await soon(async () => {
      const now = await told()
      // What is not named goes back to its default.
      return now('max.message.bytes') === '123456' && now('retention.ms') !== '3600000'
    })
  })
}

const records = async (kafka, calls, topic) => {
  await attempt('produce', async () => {
    const producer = kafka.producer({ createPartitioner: () => () => 0 })
    await producer.connect()
    const messages = Array.from({ length: RECORDS }, (_, number) => ({ value: 'v', timestamp: String(1000 + number) }))
    await producer.send({ topic, messages })
    await producer.disconnect()
  })
  await attempt('fetchTopicOffsets', async () => {
    const { low, high } = (await calls.fetchTopicOffsets(topic)).find(each => each.partition === 0)
    assert.deepEqual([low, high], ['0', String(RECORDS)])
  })
  await attempt('fetchTopicOffsetsByTimestamp', async () => {
    const { offset } = (await calls.fetchTopicOffsetsByTimestamp(topic, 1005)).find(each => each.partition === 0)
    assert.equal(offset, '5')
  })
  await attempt('deleteTopicRecords', async () => {
    await calls.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
    const { low } = (await calls.fetchTopicOffsets(topic)).find(each => each.partition === 0)
    assert.equal(low, '4')
  })
}

const groups = async (kafka, calls, topic, groupId) => {
  const committed = async () => {
    const [{ partitions }] = await calls.fetchOffsets({ groupId, topics: [topic] })
    return partitions.find(each => each.partition === 0).offset
  }
  await attempt('setOffsets', async () => {
    await calls.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '7' }] })
    assert.equal(await committed(), '7')
  })
  await attempt('fetchOffsets', async () => assert.equal(await committed(), '7'))
  await attempt('resetOffsets', async () => {
    await calls.resetOffsets({ groupId, topic, earliest: true })
    assert.equal(await committed(), '-2', 'not the mark for the earliest offset')
  })
  await withMember(kafka, groupId, topic, async () => {
    await attempt('listGroups', async () => {
      const { groups: listed } = await calls.listGroups()
      assert(listed.some(each => each.groupId === groupId && each.protocolType === 'consumer'), 'not listed')
    })
    await attempt('describeGroups', async () => {
      const { groups: [group] } = await calls.describeGroups([groupId])
      assert.deepEqual([group.state, group.members.length], ['Stable', 1])
    })
  })
  await attempt('deleteGroups', async () => {
    await calls.deleteGroups([groupId])
    const { groups: listed } = await calls.listGroups()
    assert(!listed.some(each => each.groupId === groupId), 'still there')
  })
}

const withMember = async (kafka, groupId, topic, work) => {
  const consumer = kafka.consumer({ groupId })
  const joined = new Promise((resolve, reject) => {
    consumer.on(consumer.events.GROUP_JOIN, resolve)
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
  })
  await consumer.connect()
  await consumer.subscribe({ topic })
  await consumer.run({ autoCommit: false, eachMessage: async () => {} })
  await joined
  await work()
  await consumer.disconnect()
}

/** Calls about what a broker may do without, but not leave the client waiting for. */
const beyond = async (calls, topic) => {
  const acl = {
    resourceType: AclResourceTypes.TOPIC,
    resourceName: topic,
    resourcePatternType: ResourcePatternTypes.LITERAL,
    principal: 'User:somebody',
    host: '*',
    operation: AclOperationTypes.READ,
    permissionType: AclPermissionTypes.ALLOW,
  }
  await attempt('describeAcls', () => calls.describeAcls(acl))
  await attempt('createAcls', () => calls.createAcls({ acl: [acl] }))
  await attempt('deleteAcls', () => calls.deleteAcls({ filters: [acl] }))
  await attempt('listPartitionReassignments', () => calls.listPartitionReassignments({}))
  const partitionAssignment = [{ partition: 0, replicas: [1] }]
  await attempt(
    'alterPartitionReassignments',
    () => calls.alterPartitionReassignments({ topics: [{ topic, partitionAssignment }] }),
  )
}

/**
 * Waits for what one broker has acknowledged and another may hear of a moment later.
 */
const soon = async fact => {
  const deadline = performance.now() + SOON_MS // the wall clock may be set meanwhile
  while (!(await known(fact))) {
    assert(performance.now() < deadline, `not within ${SOON_MS} ms: ${fact}`)
    await setTimeout(20) // between two questions
  }
}

const known = async fact => {
  try {
    return await fact()
  } catch (error) {
    if (error.type === 'UNKNOWN_TOPIC_OR_PARTITION') return false
    throw error
  }
}

/** Tries a call and prints a line about it. */
const attempt = async (call, action) => {
  try {
    await action()
    say({ call, ok: true })
  } catch (error) {
    console.error(`${call}: ${error.stack}`)
    say({ call, ok: false, error: error.type ?? (error instanceof assert.AssertionError ? error.message : error.name) })
  }
}

module.exports = { admin }
