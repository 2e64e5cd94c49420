// An Express application.
const app = require('express')();
const rows = Array.from({ length: 20000 }, (_, n) => `row ${n}`);
app.get('/', (request, response) => response.send('hello from express\n'));
app.get('/row/:number', (request, response) => response.send(rows[request.params.number]));
app.listen(3000, '0.0.0.0');
