"""Run by an interpreter of a virtual environment into which Flask was installed."""
import flask

app = flask.Flask("installed")
app.add_url_rule("/<name>", view_func=lambda name: flask.jsonify(hello=name), endpoint="hello")
print(app.test_client().get("/you").get_json())
