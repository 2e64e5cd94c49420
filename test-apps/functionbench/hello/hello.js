// The greeting of functions/hello.py in Node.js, answered as frame.py answers.
"use strict";
const crypto = require("crypto");
const http = require("http");

let served = 0;

function handle() {
    return "hello, world";
}

http.createServer((request, response) => {
    const url = new URL(request.url, "http://localhost");
    const reply = (status, text) => response.writeHead(status, { "Content-Length": Buffer.byteLength(text), Connection: "close" }).end(text);
    if (url.pathname !== "/") {
        return reply(404, `${url.pathname}: there is only /\n`);
    }
    for (const [name] of url.searchParams) {
        return reply(400, `${name}: no such parameter; there are none\n`);
    }
    const began = process.hrtime.bigint();
    const result = handle();
    const seconds = Number(process.hrtime.bigint() - began) / 1e9;
    served += 1;
    const digest = crypto.createHash("sha256").update(result).digest("hex");
    reply(200, JSON.stringify({ function: "hello", parameters: {}, digest, seconds, served }) + "\n");
}).listen(Number(process.env.PORT || 8080));
