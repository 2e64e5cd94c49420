"""A Flask application: gunicorn runs it."""
import flask

app = flask.Flask(__name__)
ROWS = [f"row {n}" for n in range(20_000)]


@app.route("/")
def hello():
    return "hello from flask\n"


@app.route("/row/<int:number>")
def row(number):
    return ROWS[number]
