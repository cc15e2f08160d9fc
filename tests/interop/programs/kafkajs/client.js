'use strict'

// One stock client in one program: kafkajs. tests/interop/story/clients/base.py says what produce, member and admin do.

const { Kafka, logLevel } = require('kafkajs')
const { admin } = require('./admin')
const { member } = require('./member')
const { produce } = require('./produce')

const USAGE = `usage: client.js produce BOOTSTRAP TOPIC CODEC FIRST COUNT
       client.js member BOOTSTRAP GROUP TOPIC SESSION_TIMEOUT_MS
       client.js admin BOOTSTRAP PREFIX`

const PROGRAMS = { produce: [produce, 5], member: [member, 4], admin: [admin, 2] }

const main = async ([name, ...args]) => {
  const [program, argumentCount] = PROGRAMS[name] ?? []
  if (program === undefined || args.length !== argumentCount) {
    throw new Error(USAGE)
  }
  const [bootstrap, ...rest] = args
  const connect = (options = {}) => new Kafka({ brokers: bootstrap.split(','), logCreator: complain, ...options })
  await program(connect, ...rest)
}

/** Warnings and errors go to standard error; standard output is for facts. */
const complain = () => ({ level, namespace, log }) => {
  if (level <= logLevel.WARN) {
    const { message, error } = log
    console.error([namespace, message, error].filter(Boolean).join(': '))
  }
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  error => {
    console.error(error)
    process.exit(1)
  },
)
