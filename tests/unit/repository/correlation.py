"""Finds code that derives a message's result from the end of a turn (semantics U11).

A message id proves admission and nothing more. Code that pairs it with a `turn/end` invents a result that the agent
never gave. Three shapes of that pairing are found in the syntax tree:

    1  in one function: a message id is tested, and a turn's end is tested
    2  in one function: a turn's number is tested, and a turn's end is tested (the second half of id -> turn -> end)
    3  in one module: a message id is tested together with its admission (`user/message`, `inbox/claimed`), and a turn's
       end is tested anywhere (the state machine that waits for "my message", then for "its" end)

What is *not* a pairing, because the product needs it: to find the `inbox/queued` of an own message (U2), to name the
kind of the last `turn/end` of an interval (U3), to recognise an own goal message (U9), to write events.

"Tested" means compared, looked up, matched, filtered by, or handed to a function that is not a constructor. Seen
through: constants and sets of them in any module, local aliases, spliced strings, prefixes and suffixes, predicates in
other modules, dispatch tables, match statements, classes named after the event. TypeScript and JavaScript are read as
the Python that says the same (`typescript`) and held to the same shapes; in other languages nearness of lines is looked
at.

Not seen: pairing by position alone ("the first end after my admission" cut out by slicing), and names that hide what
they hold from one function to the next. The SDKs' replay of golden traces and intervals is what fails then.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Final, NamedTuple

from tests.unit.repository import typescript

END: Final = "turn/end"
ADMISSIONS: Final = frozenset({"user/message", "inbox/claimed"})
NAMED_SET_COUNT_MAX: Final = 4
"""A constant with more strings than this is a vocabulary, not a test for one of them."""
NEAR_LINES: Final = 12
"""In other languages: how near to each other a message id and a turn's end are suspicious."""

LOOKUPS: Final = frozenset(
    {"get", "pop", "setdefault", "index", "count", "find", "__eq__", "__contains__", "__getitem__", "eq", "itemgetter"}
)
COPIERS: Final = frozenset({"get", "pop", "str", "set", "list", "tuple", "frozenset", "cast"})
WRITERS: Final = frozenset({"append", "draft", "event", "write"})
FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef

END_NAME: Final = re.compile(r"turn_?end(s|ed)?(_?(event|data|type))?$", re.IGNORECASE)
MESSAGE_NAME: Final = re.compile(r"(message_?ids?|msg_?ids?)$|^mids?$", re.IGNORECASE)
TURN_NAME: Final = re.compile(r"(^|_)turn(_?(id|number|no))?$", re.IGNORECASE)
FAR_END: Final = re.compile(r"turn/end|turn_?end", re.IGNORECASE)
FAR_MESSAGE: Final = re.compile(r"message_?id", re.IGNORECASE)


class Pairing(NamedTuple):
    """Where a message could be paired with a result, and by which shape."""

    path: str
    line: int
    function: str
    shape: int


@dataclass
class Knowledge:
    """What the whole product calls things: constants that hold a word, and predicates that test for a turn's end."""

    ends: set[str] = field(default_factory=set)
    messages: set[str] = field(default_factory=set)
    admissions: set[str] = field(default_factory=set)
    end_handlers: set[str] = field(default_factory=set)


def pairings(sources: Mapping[str, str], judged: Iterable[str]) -> list[Pairing]:
    """The pairings in the judged files; all sources (path to text) together say what names mean."""
    trees: dict[str, ast.Module] = {}
    opaque = set()
    for path, text in sources.items():
        suffix = PurePath(path).suffix
        if suffix == ".py":
            trees[path] = ast.parse(text)
        elif suffix in typescript.SUFFIXES:
            trees[path], is_understood = typescript.module(text, suffix)
            opaque |= set() if is_understood else {path}
    known = {is_python: learn(trees[p] for p in trees if p.endswith(".py") is is_python) for is_python in (True, False)}
    found: list[Pairing] = []
    for path in judged:
        if path in trees:
            found += in_module(path, trees[path], known[path.endswith(".py")])
        if path in opaque or path not in trees:
            found += in_other_language(path, sources[path])
    return found


def in_module(path: str, tree: ast.Module, known: Knowledge) -> list[Pairing]:
    """All three shapes in one module."""
    scopes = [Scope(node, known) for node in outermost_functions(tree)]
    scopes.append(Scope(top_level(tree), known))
    if not any(scope.tests_end for scope in scopes):
        return []
    found = []
    for scope in scopes:
        shape = 0
        if scope.tests_message and scope.names_admission:
            shape = 3
        if scope.tests_end and scope.tests_turn:
            shape = 2
        if scope.tests_end and scope.tests_message:
            shape = 1
        if shape:
            found.append(Pairing(path, scope.line, scope.name, shape))
    return found


def in_other_language(path: str, text: str) -> list[Pairing]:
    """Shape 1 by nearness of lines."""
    lines = text.splitlines()
    ends = [number for number, line in enumerate(lines, 1) if FAR_END.search(line)]
    messages = [number for number, line in enumerate(lines, 1) if FAR_MESSAGE.search(line)]
    near = (end for end in ends if any(abs(end - message) <= NEAR_LINES for message in messages))
    return [Pairing(path, line, "(lines)", 1) for line in near]


# --- what names mean --------------------------------------------------------------------------------------------------


def learn(trees: Iterable[ast.Module]) -> Knowledge:
    """Read constants first, then predicates and dispatch tables, which may use them."""
    known = Knowledge()
    modules = list(trees)
    for tree in modules:
        for target, value in assignments(tree):
            words = set(strings(value))
            if len(words) > NAMED_SET_COUNT_MAX:
                continue
            known.ends |= {target} if END in words else set()
            known.messages |= {target} if any(MESSAGE_NAME.search(word) for word in words) else set()
            known.admissions |= {target} if words & ADMISSIONS else set()
    for tree in modules:
        known.end_handlers |= set(dispatched_ends(tree, known))
        for node in outermost_functions(tree):
            if returns_a_truth(node) and Scope(node, known).tests_end:
                known.ends.add(node.name)
    return known


def assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names given to values at the top of a module or of a class, enumerations included."""
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for statement in (statement for body in bodies for statement in body):
        if isinstance(statement, ast.Assign):
            yield from ((t.id, statement.value) for t in statement.targets if isinstance(t, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and statement.value and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value


def dispatched_ends(tree: ast.Module, known: Knowledge) -> Iterator[str]:
    """Functions that a table calls for a turn's end."""
    for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if key is not None and means_end(key, known):
                yield from (word for word in (last_word(value),) if word)


def returns_a_truth(node: Function) -> bool:
    """Whether a function is a predicate by its annotation."""
    return node.returns is not None and any(
        word in ast.unparse(node.returns) for word in ("bool", "TypeGuard", "TypeIs")
    )


def outermost_functions(tree: ast.Module) -> Iterator[Function]:
    """Functions and methods; what is nested in one belongs to it."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, FUNCTIONS):
            yield node
        else:
            waiting += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def top_level(tree: ast.Module) -> ast.Module:
    """The code of a module that runs at import (lambdas in a table, say), without functions, classes and constants."""
    leave = (*FUNCTIONS, ast.ClassDef, ast.Import, ast.ImportFrom)
    return ast.Module([node for node in tree.body if not isinstance(node, leave)], [])


def strings(node: ast.AST) -> Iterator[str]:
    """All string constants below a node, with sums of constants put together."""
    spliced = splice(node)
    if spliced is not None:
        yield spliced
        return
    for child in ast.iter_child_nodes(node):
        yield from strings(child)


def splice(node: ast.AST) -> str | None:
    """The string that a constant expression makes: "turn" + "/end", f"{'turn'}/end", "/".join(("turn", "end"))."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [splice(left), splice(right)]
        case ast.JoinedStr(values=values):
            parts = [splice(value) for value in values]
        case ast.FormattedValue(value=value):
            return splice(value)
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(glue)), attr="join"),
            args=[ast.Tuple(elts=elements) | ast.List(elts=elements)],
        ):
            words = [splice(element) for element in elements]
            return glue.join(word for word in words if word is not None) if None not in words else None
        case _:
            return None
    return "".join(part for part in parts if part is not None) if None not in parts else None


def last_word(node: ast.AST) -> str:
    """`c` of `a.b.c`, `a` of `a`; empty for anything else."""
    match node:
        case ast.Attribute(attr=word) | ast.Name(id=word):
            return word
        case _:
            return ""


def means_end(node: ast.AST, known: Knowledge) -> bool:
    """Whether something below the node names the end of a turn."""
    if END in strings(node):
        return True
    words = {last_word(inner) for inner in ast.walk(node)} - {""}
    return bool(words & known.ends) or any(END_NAME.search(word) for word in words)


# --- one function -----------------------------------------------------------------------------------------------------


class Scope:
    """What one function tests, everything nested in it included."""

    def __init__(self, node: Function | ast.Module, known: Knowledge) -> None:
        self._node = node
        self._known = known
        self.name = "(module)" if isinstance(node, ast.Module) else node.name
        self.line = 1 if isinstance(node, ast.Module) else node.lineno
        self._tested = list(tested(node))

    @cached_property
    def tests_end(self) -> bool:
        """A turn's end decides something here, or it is the place a dispatch table sends it to."""
        if self.name in self._known.end_handlers or END_NAME.search(self.name):
            return True
        return any(self._asks_for_end(node) for node in ast.walk(self._node)) or any(
            means_end(node, self._known) for node in self._tested
        )

    @cached_property
    def tests_message(self) -> bool:
        """A message id decides something here."""
        aliases = self._aliases(MESSAGE_NAME, self._known.messages)
        return any(mentions(node, MESSAGE_NAME, aliases) for node in self._tested)

    @cached_property
    def tests_turn(self) -> bool:
        """A turn's number decides something here."""
        aliases = self._aliases(TURN_NAME, set())
        return any(mentions(node, TURN_NAME, aliases) for node in self._tested)

    @cached_property
    def names_admission(self) -> bool:
        """The admission of a message decides something here."""
        for node in self._tested:
            if ADMISSIONS & set(strings(node)):
                return True
            if {last_word(inner) for inner in ast.walk(node)} & self._known.admissions:
                return True
        return False

    def _aliases(self, pattern: re.Pattern[str], constants: set[str]) -> set[str]:
        """Names that hold the same thing under another name, here and until nothing new is found."""
        held = set(constants)
        copies = [(target, value) for target, value in bindings(self._node) if is_a_copy(value)]
        while True:
            more = {word for target, value in copies if mentions(value, pattern, held) for word in bound_names(target)}
            if more <= held:
                return held
            held |= more

    def _asks_for_end(self, node: ast.AST) -> bool:
        """`.startswith("turn/")`, `.endswith("/end")`, or a call of a predicate that is known to test for it."""
        match node:
            case ast.Call(func=ast.Attribute(attr="startswith"), args=[first, *_]):
                return any(word and END.startswith(word) for word in strings(first))
            case ast.Call(func=ast.Attribute(attr="endswith"), args=[first, *_]):
                return any(word and END.endswith(word) for word in strings(first))
            case ast.Call(func=func):
                return last_word(func) in self._known.ends
            case _:
                return False


def tested(node: ast.AST) -> Iterator[ast.AST]:
    """Every expression below the node that decides something."""
    for inner in ast.walk(node):
        match inner:
            case ast.Compare():
                yield inner
            case ast.Subscript(slice=place) if not isinstance(place, ast.Constant):
                yield place
            case ast.match_case(pattern=pattern):
                yield pattern_as_expression(pattern)
            case ast.Match(subject=subject):
                yield subject
            case ast.Call():
                yield from tested_arguments(inner)


def tested_arguments(call: ast.Call) -> Iterator[ast.AST]:
    """What a call decides by: the key of a look-up, a class of `isinstance`, what is handed to a search."""
    word = last_word(call.func)
    if word in LOOKUPS:
        yield from (
            argument for argument in call.args if not isinstance(argument, ast.Constant) or argument.value == END
        )
    elif word == "isinstance":
        yield from call.args[1:]
    elif word and not word[0].isupper() and word not in WRITERS:
        words = [*call.args, *(keyword.value for keyword in call.keywords)]
        yield from (argument for argument in words if END in strings(argument) and not isinstance(argument, ast.Dict))


def pattern_as_expression(pattern: ast.pattern) -> ast.AST:
    """A pattern's values, keys, classes and captures as names that `mentions` understands."""
    names: list[ast.expr] = []
    for inner in ast.walk(pattern):
        match inner:
            case ast.MatchClass(kwd_attrs=words):
                names += [ast.Name(word) for word in words]
            case ast.MatchMapping(keys=keys):
                names += keys
            case ast.MatchValue(value=value):
                names.append(value)
    return ast.Tuple([*names, *(inner.cls for inner in ast.walk(pattern) if isinstance(inner, ast.MatchClass))])


def mentions(node: ast.AST, pattern: re.Pattern[str], held: set[str]) -> bool:
    """Whether a name, attribute or string below the node is of the kind, or holds one."""
    words = {last_word(inner) for inner in ast.walk(node)} - {""}
    return bool(words & held) or any(pattern.search(word) for word in words | set(strings(node)))


def bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Every target and what it is given: assignments, loops, comprehensions, `:=`."""
    for inner in ast.walk(node):
        match inner:
            case ast.Assign(targets=targets, value=value):
                yield from ((target, value) for target in targets)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield target, value
            case ast.NamedExpr(target=target, value=value):
                yield target, value
            case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                yield target, value


def bound_names(target: ast.AST) -> Iterator[str]:
    """The names a target binds: `a`, `self.a`, each of `a, b`."""
    match target:
        case ast.Name() | ast.Attribute():
            yield last_word(target)
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            for inner in targets:
                yield from bound_names(inner)
        case ast.Starred(value=inner):
            yield from bound_names(inner)


def is_a_copy(value: ast.AST) -> bool:
    """Whether a value is the thing itself under another name, and not something made from it (a receipt, a request)."""
    match value:
        case ast.Name() | ast.Attribute() | ast.Subscript() | ast.IfExp() | ast.BoolOp() | ast.Set() | ast.Tuple():
            return True
        case ast.SetComp() | ast.ListComp() | ast.GeneratorExp():
            return is_a_copy(value.elt)
        case ast.Call(func=func):
            return last_word(func) in COPIERS
        case _:
            return False
