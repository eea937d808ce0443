// Clients of Kafka 0.7 for Node, driven line by line; tests/support/foreign/clients07.py has the other end.
// Arguments: the directory with the modules. A line is a request as JSON, and so is each answer.
'use strict'

const Module = require('module')
const path = require('path')
const readline = require('readline')

const HOST = '127.0.0.1'
const PATIENCE_MS = 10000

// prozess counts offsets with bignum, which is made of C++ that today's Node no longer compiles.
class BigNum {
  constructor(value) {
    this.value = BigInt(value)
  }

  add(other) {
    return bignum(this.value + bignum(other).value)
  }

  eq(other) {
    return this.value === bignum(other).value
  }

  toString() {
    return this.value.toString()
  }

  toBuffer({ size }) {
    return Buffer.from(this.value.toString(16).padStart(2 * size, '0'), 'hex')
  }
}

function bignum(value) {
  return value instanceof BigNum ? value : new BigNum(value)
}
bignum.fromBuffer = (bytes) => bignum('0x' + bytes.toString('hex'))

const load = Module._load
Module._load = (name, ...rest) => (name === 'bignum' ? bignum : load(name, ...rest))

const modules = process.argv[2]
const prozess = require(path.join(modules, 'prozess'))
const kafka = require(path.join(modules, 'kafka'))

// Either gives no word when the broker closes the connection.
function within(what, start) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no answer to ${what}`)), PATIENCE_MS)
    const settle = (then) => (value) => {
      clearTimeout(timer)
      then(value)
    }
    start(settle(resolve), settle(reject))
  })
}

const withProzess = {
  produce({ port, topic, partition, payloads }) {
    return within('produce', (resolve, reject) => {
      const producer = new prozess.Producer(topic, { host: HOST, port, partition })
      producer.on('error', reject)
      producer.on('connect', () => {
        producer.send(payloads.map((hex) => Buffer.from(hex, 'hex')), (error) => {
          producer.connection._connection.end()
          error ? reject(error) : resolve({})
        })
      })
      producer.connect()
    })
  },

  _ask({ port, topic, partition, offset, size }, ask) {
    return within('a request', (resolve, reject) => {
      const consumer = new prozess.Consumer({
        host: HOST, port, topic, partition, offset, maxMessageSize: size,
      })
      consumer.connect((error) => {
        if (error) return reject(error)
        ask(consumer, (failure, value) => {
          consumer.socket.end()
          failure ? reject(failure) : resolve([consumer, value])
        })
      })
    })
  },

  async fetch(request) {
    const [consumer, messages] = await this._ask(request, (consumer, done) => consumer.consume(done))
    return {
      payloads: messages.map((message) => message.payload.toString('hex')),
      valid: messages.every((message) => message.isValid()),
      next: Number(consumer.offset.toString()),
    }
  },

  async offsets(request) {
    const name = request.time === -1 ? 'getLatestOffset' : 'getEarliestOffset'
    const [, offset] = await this._ask(request, (consumer, done) => consumer[name](done))
    return { offsets: [Number(offset.toString())] }
  },
}

const withKafka = {
  produce({ port, topic, partition, payloads }) {
    return within('produce', (resolve, reject) => {
      const producer = new kafka.Producer({ host: HOST, port, topic, partition })
      producer.on('error', reject)
      producer.connect(() => {
        producer._connection.on('close', () => resolve({}))
        producer.send(payloads.map((hex) => Buffer.from(hex, 'hex').toString('latin1')))
        producer.close()
      })
    })
  },

  fetch({ port, topic, partition, offset, size }) {
    return within('fetch', (resolve, reject) => {
      const client = new kafka.Client({ host: HOST, port, maxSize: size })
      const payloads = []
      client.on('error', (code, name) => reject(new Error(name || code)))
      client.on('message', (_, payload) => payloads.push(Buffer.from(payload).toString('hex')))
      client.on('lastmessage', (_, next) => {
        client.close()
        resolve({ payloads, next })
      })
      client.fetchTopic({ name: topic, partition, offset })
      client.connect()
    })
  },

  offsets({ port, topic, partition, count }) {
    return within('offsets', (resolve, reject) => {
      const client = new kafka.Client({ host: HOST, port })
      const offsets = []
      client.on('error', (code, name) => reject(new Error(name || code)))
      client.on('offset', (_, offset) => offsets.push(offset))
      client.on('lastoffset', () => {
        client.close()
        resolve({ offsets })
      })
      client.fetchOffsets({ name: topic, partition, offsets: count })
      client.connect()
    })
  },
}

const clients = { prozess: withProzess, kafka: withKafka }

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line)
    let answer
    try {
      answer = await clients[request.client][request.do](request)
    } catch (error) {
      answer = { error: String((error && error.message) || error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
}

main()
