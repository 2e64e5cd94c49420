// What Node.js programs do with files, processes, streams and sockets; prints only what is the same each time.
const assert = require('assert')
const { execFileSync, fork } = require('child_process')
const crypto = require('crypto')
const fs = require('fs')
const net = require('net')
const os = require('os')
const path = require('path')
const { pipeline } = require('stream/promises')
const zlib = require('zlib')

if (process.argv[2] === 'child') {
  process.on('message', (n) => process.send(n * n, () => n === 99 && process.disconnect()))
} else {
  main()
}

const digest = (data) => crypto.createHash('sha256').update(data).digest('hex')

async function main() {
  const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'jobs-'))
  const file = path.join(scratch, 'text')
  fs.writeFileSync(file, Array.from({ length: 50000 }, (_, n) => `line ${n}\n`).join(''))
  await pipeline(fs.createReadStream(file), zlib.createGzip(), zlib.createGunzip(), fs.createWriteStream(file + '.copy'))
  console.log('streams', digest(fs.readFileSync(file + '.copy')) === digest(fs.readFileSync(file)))

  console.log('exec', execFileSync('sh', ['-c', 'seq 1 10 | tac | tr "\\n" " "']).toString().trim())

  const child = fork(__filename, ['child'])
  let sum = 0
  child.on('message', (n) => { sum += n })
  for (let n = 0; n < 100; n++) child.send(n)
  await new Promise((resolve) => child.on('exit', resolve))
  console.log('fork', sum)

  const socket = path.join(scratch, 'socket')
  const server = net.createServer((c) => c.pipe(c)).listen(socket)
  await new Promise((resolve) => server.on('listening', resolve))
  const echoed = await Promise.all(Array.from({ length: 50 }, (_, n) => new Promise((resolve) => {
    let text = ''
    const c = net.connect(socket, () => c.end(`message ${n}`))
    c.on('data', (d) => { text += d }).on('end', () => resolve(text))
  })))
  server.close()
  console.log('sockets', echoed.every((text, n) => text === `message ${n}`))

  const watcher = fs.watch(scratch)
  const seen = new Promise((resolve) => watcher.on('change', (_, name) => name === 'watched' && resolve(name)))
  fs.writeFileSync(path.join(scratch, 'watched'), 'x')
  console.log('watch', await seen)
  watcher.close()

  const bytes = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 7, 1, 96, 2, 127, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 97, 100, 100, 0, 0,
    10, 9, 1, 7, 0, 32, 0, 32, 1, 106, 11])
  const { instance } = await WebAssembly.instantiate(bytes)
  console.log('wasm', instance.exports.add(40, 2))
  assert.throws(() => fs.openSync('/nowhere/file'), { code: 'ENOENT' })
  fs.rmSync(scratch, { recursive: true })
}
