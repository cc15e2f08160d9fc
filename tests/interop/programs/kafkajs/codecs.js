'use strict'

// kafkajs has gzip itself and takes the other codecs from outside. No lz4: what writes it for Node.js either needs a
// native build or makes frames of dependent blocks, which Kafka refuses.

const { CompressionCodecs, CompressionTypes } = require('kafkajs')
const SnappyCodec = require('kafkajs-snappy')
const { ZstdCodec } = require('zstd-codec')

const zstdSimple = new Promise(resolve => ZstdCodec.run(zstd => resolve(new zstd.Simple())))

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => Buffer.from((await zstdSimple).compress(encoder.buffer)),
  decompress: async buffer => Buffer.from((await zstdSimple).decompress(buffer)),
})

module.exports = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  zstd: CompressionTypes.ZSTD,
}
