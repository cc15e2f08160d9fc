'use strict'

const { writeSync } = require('node:fs')

/** Prints one JSON object, and returns when it is written. */
const say = line => {
  let rest = Buffer.from(JSON.stringify(line) + '\n')
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(1, rest))
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error // a pipe that is full for the moment
    }
  }
}

module.exports = { say }
