// Rows by Express, made one program by esbuild. Every request makes garbage; a timer ticks.
const crypto = require('crypto')
const express = require('express')

const rows = Array.from({ length: 20000 }, (_, n) => `row ${n}`)
let ticks = 0
setInterval(() => ticks++, 1000)

const app = express()
app.get('/row/:n', (request, response) => {
  const garbage = Array.from({ length: 5000 }, (_, n) => ({ n, text: `garbage ${n}` }))
  // A thread of libuv's pool has a part in it.
  crypto.pbkdf2('password', 'salt', garbage.length / 50, 32, 'sha256', (error) => {
    if (error) response.status(500).end()
    else response.type('text/plain').send(rows[Number(request.params.n)])
  })
})
if (process.argv[2] === 'selftest') {
  const server = app.listen(0, '127.0.0.1', async () => {
    const answer = await fetch(`http://127.0.0.1:${server.address().port}/row/17`)
    console.log(answer.status, await answer.text())
    process.exit(0)
  })
} else {
  app.listen(8080, '0.0.0.0')
}
