"""A page with a table of n rows and ten columns, from a template."""
import chameleon

PARAMETERS = {"n": (2000, 1, 100_000)}
TEMPLATE = """\
<table xmlns="http://www.w3.org/1999/xhtml" xmlns:tal="http://xml.zope.org/namespaces/tal">
<tr tal:repeat="row table">
<td tal:repeat="c row"><span class="column-${c}" tal:attributes="title str(c)" tal:content="c"/></td>
</tr>
</table>"""
page = None


def setup():
    global page
    page = chameleon.PageTemplate(TEMPLATE)


def handle(parameters):
    row = {str(i): i for i in range(10)}
    return page(table=[row] * parameters["n"]).encode()
