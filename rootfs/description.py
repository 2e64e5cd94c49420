"""Descriptions of images: what their keys mean, and what is wrong with one. The table of keys is in README.md here.

`load(FILE or NAME)` reads a description and those that it extends, and raises Wrong, one line that names file, key and what is allowed.
"""
import dataclasses
import math
import os
import re

try:
    import yaml
except ImportError:
    yaml = None

HERE = os.path.dirname(os.path.abspath(__file__))
IMAGES = os.path.join(HERE, "images")
LITERAL_BASES = ("debian", "busybox")
# What a container always has of its own there: code could not be seen.
NOT_FOR_CODE = ("/proc", "/sys", "/dev", "/tmp")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Wrong(Exception):
    """What a user is told in one line."""


@dataclasses.dataclass
class Description:
    """A description that was checked. `base` is a Description, or one of LITERAL_BASES."""
    file: str
    name: str
    base: object
    packages: list = dataclasses.field(default_factory=list)
    pip: list = dataclasses.field(default_factory=list)
    npm: list = dataclasses.field(default_factory=list)
    code: dict = dataclasses.field(default_factory=dict)
    build: list = dataclasses.field(default_factory=list)
    command: list = dataclasses.field(default_factory=list)
    workdir: str = "/"
    environment: dict = dataclasses.field(default_factory=dict)
    user: str = "root"
    port: int = None
    readonly: bool = True
    memory_bytes: int = None
    cpus: float = None
    pids: int = None

    @property
    def literal_base(self):
        """The one of LITERAL_BASES that all lies on."""
        return self.base if isinstance(self.base, str) else self.base.literal_base

    @property
    def directory(self):
        return os.path.dirname(self.file)


if yaml:
    class Loader(yaml.SafeLoader):
        """YAML 1.2 as its core schema has it, for 1.1 takes `33:33` for a number and `no` for false; and each key stands once."""
        yaml_implicit_resolvers = {}

    for tag, pattern, first in [
        ("bool", r"true|false", "tf"), ("null", r"null|~|", ["n", "~", ""]),
        ("int", r"[-+]?[0-9]+", "-+0123456789"), ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ]:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))

    def _mapping(loader, node):
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} stands twice", key.start_mark)
            seen.add(key.value)
        return loader.construct_mapping(node, deep=True)

    Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
    # YAML 1.2 has octal numbers only with 0o, and SafeLoader would read 010 as 8.
    Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value, 10))


def _word(pattern, allowed):
    """A check of a string. `allowed` says what is, for who gave something else."""
    def check(value):
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(allowed)
        return value
    return check


def _list(check, allowed):
    def checked(value):
        if not isinstance(value, list) or not value:
            raise ValueError(allowed)
        return [check(v) for v in value]
    return checked


def _number(low, high, allowed, types=(int,)):
    def check(value):
        if type(value) not in types or not math.isfinite(value) or not low <= value <= high:
            raise ValueError(allowed)
        return value
    return check


def _path(allowed, forbidden=()):
    def check(value):
        if not isinstance(value, str) or not re.fullmatch(r"/|(/[A-Za-z0-9._+@-]+)+", value) or {".", ".."} & set(value.split("/")):
            raise ValueError(allowed)
        for path in forbidden:
            if value == path or path != "/" and value.startswith(path + "/"):
                raise ValueError(f"{allowed}, not {path}" + ("" if path == "/" else ", which each container has of its own"))
        return value
    return check


def _environment(value):
    allowed = "a map of NAME: value, values strings without line breaks, or whole numbers"
    if not isinstance(value, dict):
        raise ValueError(allowed)
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or type(text) not in (str, int) \
                or re.search(r"[\n\r\0]", str(text)):
            raise ValueError(f"{allowed} (not {name})")
    return {name: str(text) for name, text in value.items()}


def _boolean(value):
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _user(value):
    name = "[a-z_][a-z0-9_-]*|[0-9]+"
    if type(value) not in (str, int) or not re.fullmatch(f"({name})(:({name}))?", str(value)):
        raise ValueError("USER or USER:GROUP, names or numbers")
    return str(value)


def _memory(value):
    match = re.fullmatch(r"([1-9][0-9]{0,5})([KMG])", value) if isinstance(value, str) else None
    if not match:
        raise ValueError("a whole number and K, M or G, such as 256M")
    return int(match[1]) * UNITS[match[2]]


_TEXT = _word(r"[^\0]+", "a list of strings (quote numbers)")
_LINE = _list(_TEXT, "a list of strings, not empty (quote numbers)")
_NAME = "small letters and digits, with single - and _ between"
_is_name = _word(r"[a-z0-9]+([_-][a-z0-9]+)*", _NAME)
# What would be an option of the program that installs it is none.
_REQUIREMENT = _word(r"[A-Za-z0-9][^\n\0]*", "a list of requirements such as numpy==1.26.4")
_NPM = _word(r"(@[a-z0-9._~-]+/)?[a-z0-9][a-z0-9._~-]*@[A-Za-z0-9^~<>=][A-Za-z0-9.^~<>=+-]*", "a list of NAME@VERSION")
_PACKAGE = _word(r"[a-z0-9][a-z0-9+.-]*(=[A-Za-z0-9.+:~-]+)?", "a list of apt packages")

# What a key of the description may be. `base` and `code` are more than a value, and have functions of their own.
KEYS = {
    "name": _is_name,
    "base": _word(r"[a-z0-9]+([_-][a-z0-9]+)*", "debian, busybox or the name of another description"),
    "packages": _list(_PACKAGE, "a list of apt packages, not empty"),
    "dependencies": None,
    "code": None,
    "build": _LINE,
    "command": _LINE,
    "workdir": _path("an absolute path"),
    "environment": _environment,
    "user": _user,
    "port": _number(1, 65535, "a number from 1 to 65535"),
    "readonly": _boolean,
    "limits": None,
}
GROUPS = {
    "dependencies": {"pip": _list(_REQUIREMENT, "a list of requirements, not empty"), "npm": _list(_NPM, "a list of NAME@VERSION, not empty")},
    "limits": {"memory": _memory, "cpus": _number(0.01, 1024, "a number from 0.01 to 1024", (int, float)),
               "pids": _number(1, 1 << 22, "a whole number from 1")},
}
FIELDS = {"memory": "memory_bytes"}
_DESTINATION = _path("an absolute path without . and .. and with no / at its end", ("/",) + NOT_FOR_CODE)


def _check(file, key, check, value):
    try:
        return check(value)
    except ValueError as error:
        raise Wrong(f"{file}: {key}: {error}") from None


def _known(file, key, table, allowed, where="keys"):
    if key not in table:
        raise Wrong(f"{file}: {key}: there is no such key ({where}: {', '.join(allowed)})")


def _code(file, value):
    if not isinstance(value, dict) or not value:
        raise Wrong(f"{file}: code: a map of a path beside the description to an absolute path in the root, not empty")
    for source, destination in value.items():
        key = f"code: {source}"
        if not isinstance(source, str) or not source or os.path.isabs(source):
            raise Wrong(f"{file}: {key}: a path relative to the description")
        _check(file, key, _DESTINATION, destination)
        if not os.path.exists(os.path.join(os.path.dirname(file), source)):
            raise Wrong(f"{file}: {key}: no such file or directory beside the description")
    return dict(value)


def _base(file, name, below):
    if name in LITERAL_BASES:
        return name
    places = [os.path.join(directory, name + ".yaml") for directory in (os.path.dirname(file), IMAGES)]
    found = next((place for place in places if os.path.exists(place)), None)
    if not found:
        raise Wrong(f"{file}: base: {name}: neither {' nor '.join(LITERAL_BASES)}, and there is no {' or '.join(places)}")
    if os.path.realpath(found) in below:
        raise Wrong(f"{file}: base: {name} extends this description itself")
    return load(found, below)


def read(file):
    """The map that a file has, not checked."""
    if not yaml:
        raise Wrong("Python has no PyYAML: apt-get install python3-yaml, or run scripts/setup.sh (Debian's own Python is /usr/bin/python3)")
    try:
        with open(file, encoding="utf-8") as stream:
            value = yaml.load(stream, Loader)
    except OSError as error:
        raise Wrong(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Wrong(f"{file}: not a text in UTF-8") from None
    # What a tag such as !!int makes a value be may fail in any way that its constructor has.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise Wrong(f"{file}{at}: not YAML: {getattr(error, 'problem', None) or 'it cannot be read'}") from None
    if not isinstance(value, dict):
        raise Wrong(f"{file}: a map is needed (keys: {', '.join(KEYS)})")
    return value


def load(name, below=()):
    """The description in a file, or that of rootfs/images with this name. `below`: files that extend it."""
    file = name
    if not name.endswith(".yaml"):
        file = os.path.join(IMAGES, name + ".yaml")
        if not os.path.exists(file):
            there = ", ".join(sorted(f[:-5] for f in os.listdir(IMAGES) if f.endswith(".yaml")))
            raise Wrong(f"{name}: no such image (there are: {there}; a file's name ends in .yaml)")
    value = read(file)
    for key in value:
        _known(file, key, KEYS, KEYS)
    for key in ("name", "base"):
        if key not in value:
            raise Wrong(f"{file}: {key}: is missing")
    fields = {"file": os.path.abspath(file)}
    for key, inner in value.items():
        if key in GROUPS:
            group = GROUPS[key]
            if not isinstance(inner, dict) or not inner:
                raise Wrong(f"{file}: {key}: a map of {', '.join(group)}")
            for name_, part in inner.items():
                _known(file, f"{key}: {name_}", [f"{key}: {g}" for g in group], group)
                fields[FIELDS.get(name_, name_)] = _check(file, f"{key}: {name_}", group[name_], part)
        elif key == "code":
            fields[key] = _code(file, inner)
        else:
            fields[key] = _check(file, key, KEYS[key], inner)
    if fields["name"] == "layers":
        raise Wrong(f"{file}: name: layers: is taken, for what descriptions share")
    if fields["name"] != os.path.basename(file)[:-5]:
        raise Wrong(f"{file}: name: {fields['name']}: must be the file's name without .yaml, by which others extend it")
    fields["base"] = _base(file, fields["base"], {*below, os.path.realpath(file)})
    made = Description(**fields)
    if made.literal_base == "busybox" and (made.packages or made.pip or made.npm):
        key = "packages" if made.packages else "dependencies"
        raise Wrong(f"{file}: {key}: busybox has nothing to install with; base must be debian, or extend it")
    return made
