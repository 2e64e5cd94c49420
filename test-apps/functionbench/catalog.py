"""The functions: a description (FUNCTION.yaml) each, and what is asked of it."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))
# Those that are no function, but the root that functions extend.
ROOTS = "functionbench-"
# Asked with parameters of their own, under names of their own.
ALSO = {"image-processing-large": ("image-processing", "?image=large")}


class Case:
    """What is measured: `name`, the description's path, and the request."""

    def __init__(self, name, description, query=""):
        self.name, self.description, self.query = name, os.path.join(HERE, description + ".yaml"), "/" + query


def cases():
    """All, by name."""
    names = sorted(f.removesuffix(".yaml") for f in os.listdir(HERE) if f.endswith(".yaml") and not f.startswith(ROOTS))
    found = [Case(name, name) for name in names] + [Case(name, *asked) for name, asked in ALSO.items()]
    return sorted(found, key=lambda case: case.name)


def chosen(only):
    """Those that are named, in their order; all if none is. An unknown name is a ValueError."""
    found = cases()
    unknown = sorted(set(only) - {case.name for case in found})
    if unknown:
        raise ValueError(f"there is no {', '.join(unknown)}; there are {', '.join(case.name for case in found)}")
    return [case for case in found if not only or case.name in only]
