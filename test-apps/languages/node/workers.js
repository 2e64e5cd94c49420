// Workers that share memory: a server whose answers workers give, or with `selftest` a count by all of them at once.
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads')
const http = require('http')

const WORKERS = 8

if (!isMainThread) {
  const counter = new Int32Array(workerData.counter)
  const rows = Array.from({ length: 20000 }, (_, n) => `row ${n}`)
  parentPort.on('message', ({ id, n, times }) => {
    for (let i = 0; i < times; i++) Atomics.add(counter, 0, 1)
    parentPort.postMessage({ id, text: rows[n] })
  })
} else {
  const counter = new SharedArrayBuffer(4)
  const waiting = new Map()
  const workers = Array.from({ length: WORKERS }, () => new Worker(__filename, { workerData: { counter } }))
  for (const worker of workers) {
    worker.on('message', ({ id, text }) => {
      waiting.get(id)(text)
      waiting.delete(id)
    })
  }
  let next = 0
  const ask = (n, times) => new Promise((resolve) => {
    const id = next++
    waiting.set(id, resolve)
    workers[id % WORKERS].postMessage({ id, n, times })
  })
  if (process.argv[2] === 'selftest') {
    Promise.all(Array.from({ length: 64 }, (_, n) => ask(n, 10000))).then((texts) => {
      console.log(new Int32Array(counter)[0], texts.join(' '))
      process.exit(0)
    })
  } else {
    http.createServer(async (request, response) => {
      response.end(await ask(Number(request.url.split('/').pop()), 1000))
    }).listen(8080, '0.0.0.0')
  }
}
