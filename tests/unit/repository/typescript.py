"""TypeScript and JavaScript, read as the Python that says the same, for those who judge syntax trees.

    text ──tree-sitter──> syntax tree ──a reader a kind of node──> ast.Module

Only what a judge of names, strings, comparisons, calls and bindings looks at is kept; types are dropped. The tree is
not to be run: a function in an expression is a lambda whose body is a list of statements.

Rule 1: names become snake_case, and private ones lose their `#`, so that `#messageId` is `message_id`.
Rule 2: what tests is a comparison here as well: `includes`, `has`, `instanceof`, `Object.is`, `switch`, a regular
        expression that spells a word, a key of a table whose value is a function written in place.
Rule 3: a function is a predicate if it says so, or if all it does is to return a comparison.
Rule 4: a node that nobody reads here is read as all that is in it, so that nothing can hide in it.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

import tree_sitter
import tree_sitter_typescript
from tree_sitter import Node

GRAMMARS: Final = {
    "typescript": tree_sitter.Language(tree_sitter_typescript.language_typescript()),
    "tsx": tree_sitter.Language(tree_sitter_typescript.language_tsx()),
}
SUFFIXES: Final = {
    **dict.fromkeys((".ts", ".mts", ".cts"), "typescript"),
    **dict.fromkeys((".tsx", ".js", ".mjs", ".cjs", ".jsx", ".html"), "tsx"),
}
"""Suffix -> its grammar; of a page, its scripts are read."""

NOT_SCRIPT: Final = re.compile(r"(?:\A|</script).*?(?:<script[^>]*>|\Z)", re.DOTALL | re.IGNORECASE)
TYPES: Final = frozenset(
    {
        *("interface_declaration", "type_alias_declaration", "type_annotation", "type_arguments", "type_parameters"),
        *("implements_clause", "comment", "function_signature", "method_signature", "import_statement"),
    }
)
"""What is not there any more when the program runs, or gives no name a value."""
WRAPPERS: Final = frozenset(
    {
        *("as_expression", "satisfies_expression", "non_null_expression", "parenthesized_expression"),
        *("await_expression", "yield_expression", "unary_expression", "spread_element", "type_assertion"),
        *("computed_property_name", "template_substitution", "update_expression", "extends_clause"),
    }
)
"""What is, for a judge, the same as what is in it."""
FUNCTIONS: Final = frozenset(
    {
        *("function_declaration", "generator_function_declaration", "method_definition"),
        *("arrow_function", "function_expression", "generator_function"),
    }
)
COMPARISONS: Final = frozenset({"===", "==", "!==", "!=", "<", ">", "<=", ">=", "in", "instanceof"})
CONNECTIVES: Final = frozenset({"&&", "||", "??"})
MEMBERSHIPS: Final = frozenset({"includes", "has"})
METHODS: Final = {
    "starts_with": "startswith",
    "ends_with": "endswith",
    "index_of": "index",
    "last_index_of": "index",
    "delete": "pop",
    "push": "append",
    "unshift": "append",
}
"""Method -> what Python calls it."""

NO_ARGUMENTS: Final = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])


def module(text: str, suffix: str) -> tuple[ast.Module, bool]:
    """The module, and whether the parser understood all of it."""
    code = scripts(text) if suffix == ".html" else text
    root = tree_sitter.Parser(GRAMMARS[SUFFIXES[suffix]]).parse(code.encode()).root_node
    return ast.Module(body=_statements(root.named_children), type_ignores=[]), not root.has_error


def scripts(page: str) -> str:
    """The scripts of a page, each on the lines where it stands."""
    return NOT_SCRIPT.sub(lambda found: "\n" * found.group().count("\n") + ";", page)


# --- words ------------------------------------------------------------------------------------------------------------


def _text(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode()


def snake(word: str) -> str:
    """A name as Python writes it; names of classes and constants stay as they are."""
    bare = word.lstrip("#")
    return bare if bare[:1].isupper() else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare).lower()


def _string(node: Node) -> str:
    return "".join(_text(child) for child in node.named_children)


def _word(node: Node | None) -> str:
    """The name of a property or a variable, however it is written."""
    if node is None:
        return ""
    return _string(node) if node.type == "string" else snake(_text(node))


# --- statements -------------------------------------------------------------------------------------------------------


def _statements(nodes: list[Node]) -> list[ast.stmt]:
    return [statement for node in nodes if node.type not in TYPES for statement in _statement(node)]


def _statement(node: Node) -> list[ast.stmt]:
    if node.type in FUNCTIONS and node.child_by_field_name("name"):
        return [_function(node, _word(node.child_by_field_name("name")))]
    if reader := STATEMENTS.get(node.type):
        return reader(node)
    if node.type.endswith(("_statement", "_clause", "_block", "_body", "module", "declaration")):
        return [ast.If(test=ast.Constant(True), body=_statements(node.named_children), orelse=[])]
    return [ast.Expr(_expression(node))]


def _declarator(node: Node) -> list[ast.stmt]:
    """`name = value`: of a variable, or of a class's field."""
    target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if target is None or value is None:
        return []
    if value.type in FUNCTIONS:
        return [_function(value, _word(target))]
    if value.type == "class":
        return _class(value, _word(target))
    return [ast.Assign(targets=[to], value=held) for to, held in _bound(target, _expression(value))]


def _bound(pattern: Node, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a pattern takes apart, name by name: `{ messageId: mine }` is `mine = value.message_id`."""
    match pattern.type:
        case "object_pattern":
            for part in pattern.named_children:
                yield from _bound_part(part, value)
        case "array_pattern":
            for part in pattern.named_children:
                yield from _bound(part, value)
        case "assignment_pattern" | "object_assignment_pattern":
            left = pattern.child_by_field_name("left")
            yield from _bound(left, value) if left is not None else ()
        case "shorthand_property_identifier_pattern":
            yield ast.Name(_word(pattern)), ast.Attribute(value, _word(pattern))
        case _:
            yield _expression(pattern), value


def _bound_part(part: Node, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    key, inner = part.child_by_field_name("key"), part.child_by_field_name("value")
    if part.type == "pair_pattern" and key is not None and inner is not None:
        yield from _bound(inner, ast.Attribute(value, snake(_word(key))))
    else:
        yield from _bound(part, value)


def _function(node: Node, name: str) -> ast.FunctionDef:
    body = _body(node)
    is_predicate = "boolean" in _text(node.child_by_field_name("return_type")) or _returns_a_test(body)
    is_predicate = is_predicate or "type_predicate" in str(node.child_by_field_name("return_type"))
    returns = ast.Name("bool") if is_predicate else None
    function = ast.FunctionDef(name=name, args=NO_ARGUMENTS, body=body, decorator_list=[], returns=returns)
    function.lineno = node.start_point.row + 1
    return function


def _body(node: Node) -> list[ast.stmt]:
    """What a function's parameters take apart, and what it does."""
    parameters, body = node.child_by_field_name("parameters"), node.child_by_field_name("body")
    taken = [part.child_by_field_name("pattern") for part in (parameters.named_children if parameters else [])]
    bound = [pair for pattern in taken if pattern is not None for pair in _bound(pattern, ast.Name("_"))]
    start: list[ast.stmt] = [ast.Assign(targets=[target], value=value) for target, value in bound]
    if body is None:
        return start
    if body.type == "statement_block":
        return start + _statements(body.named_children)
    return [*start, ast.Return(_expression(body))]


def _returns_a_test(body: list[ast.stmt]) -> bool:
    done = [statement for statement in body if not isinstance(statement, ast.Assign)]
    return len(done) == 1 and isinstance(done[0], ast.Return) and isinstance(done[0].value, ast.Compare | ast.BoolOp)


def _class(node: Node, name: str) -> list[ast.stmt]:
    body = node.child_by_field_name("body")
    inner = _statements(body.named_children) if body is not None else []
    return [ast.ClassDef(name=name, bases=[], keywords=[], body=inner, decorator_list=[])]


def _enum(node: Node) -> list[ast.stmt]:
    body = node.child_by_field_name("body")
    return _class(node, _word(node.child_by_field_name("name"))) if body is not None else []


def _switch(node: Node) -> list[ast.stmt]:
    subject, body = node.child_by_field_name("value"), node.child_by_field_name("body")
    cases = [
        ast.match_case(
            pattern=ast.MatchValue(_maybe(case.child_by_field_name("value"))),
            body=_statements(case.children_by_field_name("body")),
        )
        for case in (body.named_children if body is not None else [])
    ]
    return [ast.Match(subject=_maybe(subject), cases=cases)]


def _loop(node: Node) -> list[ast.stmt]:
    target, values, body = (node.child_by_field_name(name) for name in ("left", "right", "body"))
    inner = _statements([body]) if body is not None else []
    pairs = list(_bound(target, _maybe(values))) if target is not None else []
    return [ast.For(target=to, iter=value, body=inner, orelse=[]) for to, value in pairs]


def _named_class(node: Node) -> list[ast.stmt]:
    return _class(node, _word(node.child_by_field_name("name")))


STATEMENTS: Final[dict[str, Callable[[Node], list[ast.stmt]]]] = {
    "lexical_declaration": lambda node: _statements(node.named_children),
    "variable_declaration": lambda node: _statements(node.named_children),
    "export_statement": lambda node: _statements(node.named_children),
    "variable_declarator": _declarator,
    "public_field_definition": _declarator,
    "enum_assignment": _declarator,
    "class_declaration": _named_class,
    "abstract_class_declaration": _named_class,
    "enum_declaration": _enum,
    "switch_statement": _switch,
    "for_in_statement": _loop,
}


# --- expressions ------------------------------------------------------------------------------------------------------


def _maybe(node: Node | None) -> ast.expr:
    return ast.Constant(None) if node is None else _expression(node)


def _expression(node: Node) -> ast.expr:
    if node.type in WRAPPERS and node.named_children:
        return _expression(node.named_children[0])
    if node.type in FUNCTIONS:
        return ast.Lambda(args=NO_ARGUMENTS, body=_holding(_body(node)))
    if node.type in ("class", "statement_block"):
        return _holding(_class(node, "_") if node.type == "class" else _statements(node.named_children))
    if reader := EXPRESSIONS.get(node.type):
        return reader(node)
    if node.named_child_count == 0:
        return ast.Name(snake(_text(node)))
    return _holding(_statements(node.named_children))


def _holding(statements: list[ast.stmt]) -> ast.expr:
    """Statements where Python has none: nothing of this is run, it is only walked."""
    held = ast.List(elts=[])
    held.elts.extend(statements)  # type: ignore[arg-type]
    return held


def _member(node: Node) -> ast.expr:
    return ast.Attribute(_maybe(node.child_by_field_name("object")), _word(node.child_by_field_name("property")))


def _item(node: Node) -> ast.expr:
    return ast.Subscript(_maybe(node.child_by_field_name("object")), _maybe(node.child_by_field_name("index")))


def _binary(node: Node) -> ast.expr:
    left, right = _maybe(node.child_by_field_name("left")), _maybe(node.child_by_field_name("right"))
    operator = _text(node.child_by_field_name("operator"))
    if operator == "instanceof":
        return ast.Call(func=ast.Name("isinstance"), args=[left, right], keywords=[])
    if operator in COMPARISONS:
        return _test(left, right)
    if operator in CONNECTIVES:
        return ast.BoolOp(op=ast.And(), values=[left, right])
    return ast.BinOp(left=left, op=ast.Add(), right=right)


def _test(left: ast.expr, right: ast.expr) -> ast.expr:
    return ast.Compare(left=left, ops=[ast.In()], comparators=[right])


def _assignment(node: Node) -> ast.expr:
    target, value = node.child_by_field_name("left"), _maybe(node.child_by_field_name("right"))
    given = list(_bound(target, value)) if target is not None else []
    return ast.Tuple([_given(to, held) for to, held in given])


def _given(target: ast.expr, value: ast.expr) -> ast.expr:
    return ast.NamedExpr(target=target, value=value)  # type: ignore[arg-type] # also to an attribute


def _call(node: Node) -> ast.expr:
    function, arguments = _maybe(node.child_by_field_name("function")), node.child_by_field_name("arguments")
    values = [_expression(each) for each in (arguments.named_children if arguments else []) if each.type not in TYPES]
    if not isinstance(function, ast.Attribute):
        return ast.Call(func=function, args=values, keywords=[])
    thing, method = function.value, function.attr
    if method in MEMBERSHIPS and values:
        return _test(values[0], thing)
    if method == "is" and len(values) == 2:
        return _test(*values)
    if isinstance(thing, Spelling) and values:
        return thing.tests(values[0])
    if values and isinstance(values[0], Spelling):
        return values[0].tests(thing)
    if method == "set" and len(values) == 2:
        return ast.Tuple([ast.Subscript(thing, values[0]), values[1]])
    return ast.Call(func=ast.Attribute(thing, METHODS.get(method, method)), args=values, keywords=[])


def _new(node: Node) -> ast.expr:
    maker, arguments = node.child_by_field_name("constructor"), node.child_by_field_name("arguments")
    given = arguments.named_children if arguments else []
    pairs = given[0].named_children if given and given[0].type == "array" else []
    if _text(maker) == "Map" and pairs and all(p.type == "array" and p.named_child_count == 2 for p in pairs):
        return _table([(_expression(pair.named_children[0]), pair.named_children[1]) for pair in pairs])
    return ast.Call(func=_maybe(maker), args=[_expression(each) for each in given], keywords=[])


def _object(node: Node) -> ast.expr:
    entries: list[tuple[ast.expr, Node]] = []
    for part in node.named_children:
        key, value = part.child_by_field_name("key"), part.child_by_field_name("value")
        if part.type == "pair" and key is not None and value is not None:
            is_computed = key.type == "computed_property_name"
            entries.append((_expression(key) if is_computed else ast.Constant(_word(key)), value))
        elif part.type == "method_definition":
            entries.append((ast.Constant(_word(part.child_by_field_name("name"))), part))
        elif part.type != "comment":
            entries.append((ast.Constant("..."), part))
    return _table(entries)


def _table(entries: list[tuple[ast.expr, Node]]) -> ast.expr:
    """A dictionary; and where a value is a function written in place, its key is what decides that it is called."""
    plain = [(key, value) for key, value in entries if value.type not in FUNCTIONS]
    called = [(key, value) for key, value in entries if value.type in FUNCTIONS]
    table = ast.Dict(keys=[key for key, _ in plain], values=[_expression(value) for _, value in plain])
    return ast.Tuple([table, *(ast.Tuple([_test(key, ast.Name("_")), _expression(value)]) for key, value in called)])


def _template(node: Node) -> ast.expr:
    parts = node.named_children
    return ast.JoinedStr([ast.Constant(_text(p)) if p.type == "string_fragment" else _expression(p) for p in parts])


class Spelling(ast.Constant):
    """A regular expression that spells a word, or the beginning or the end of one."""

    def __init__(self, pattern: str) -> None:
        super().__init__(pattern.replace("\\", "").strip("^$"))
        self.begins, self.ends = pattern.startswith("^"), pattern.endswith("$")

    def tests(self, subject: ast.expr) -> ast.expr:
        """The test of a subject by it."""
        if self.begins != self.ends:
            method = "startswith" if self.begins else "endswith"
            return ast.Call(func=ast.Attribute(subject, method), args=[ast.Constant(self.value)], keywords=[])
        return _test(subject, ast.Constant(self.value))


def _choice(node: Node) -> ast.expr:
    test, body, orelse = (
        _maybe(node.child_by_field_name(name)) for name in ("condition", "consequence", "alternative")
    )
    return ast.IfExp(test=test, body=body, orelse=orelse)


EXPRESSIONS: Final[dict[str, Callable[[Node], ast.expr]]] = {
    "string": lambda node: ast.Constant(_string(node)),
    "template_string": _template,
    "regex": lambda node: Spelling(_text(node.child_by_field_name("pattern"))),
    "member_expression": _member,
    "subscript_expression": _item,
    "binary_expression": _binary,
    "assignment_expression": _assignment,
    "augmented_assignment_expression": _assignment,
    "call_expression": _call,
    "new_expression": _new,
    "object": _object,
    "array": lambda node: ast.List([_expression(each) for each in node.named_children]),
    "ternary_expression": _choice,
}
