"""What gdb says of values, for against_gdb.rs. Runs inside gdb.

CAPRIOLE_TASK names a JSON file, CAPRIOLE_ANSWER where the answer goes. Two tasks:
"candidates" chooses functions, lines and expressions; "values" runs the program, stops at
addresses, and says what the expressions are there at each hit.
"""

import gdb
import json
import os
import random
import re
import struct

# Written over dead stack at each hit: what holds it was never written by the program.
DEAD = 0xA5
DEAD_BYTES = 8192
# So often dead stack is written over at a place, then it is left alone: that takes long.
MOST_STOPS = 2000
NAME = re.compile(r"^[A-Za-z_]\w*$")
STEP = re.compile(r"->(\w+)|\.(\w+)|\[(\d+)\]")
REFERENCES = (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)
NUMBERS = (gdb.TYPE_CODE_INT, gdb.TYPE_CODE_CHAR, gdb.TYPE_CODE_BOOL, gdb.TYPE_CODE_ENUM, gdb.TYPE_CODE_PTR)
RECORDS = (gdb.TYPE_CODE_STRUCT, gdb.TYPE_CODE_UNION)


def chain(pc):
    """The blocks around an address, innermost first, up to the function whose code it is."""
    blocks = []
    block = gdb.block_for_pc(pc)
    while block is not None and not block.is_static and not block.is_global:
        blocks.append(block)
        block = block.superblock
    while blocks and blocks[-1].function is None:
        blocks.pop()
    return blocks


def scope(pc, wanted):
    """The blocks in which names are looked for: from `wanted` (True: the innermost function,
    False: the outermost, or the name of a copy) outwards. None if it is not there, or if it
    is not clear which."""
    levels, level = [], []
    for block in chain(pc):
        level.append(block)
        if block.function is not None:
            levels.append(level)
            level = []
    if not levels:
        return None
    if wanted is True or wanted is False:
        first = 0 if wanted else len(levels) - 1
    else:
        plain = lambda text: re.sub(r"\s", "", text or "")
        called = lambda f: plain(wanted) in (plain(f.name), plain(f.linkage_name), plain(f.print_name))
        bare = lambda f: re.sub(r"[(<].*", "", plain(f.name)).split("::")[-1] == plain(wanted).split("::")[-1]
        for same in (called, bare):
            found = [i for i, level in enumerate(levels) if same(level[-1].function)]
            if found:
                break
        if len(found) != 1:
            return None
        first = found[0]
    return [block for level in levels[first:] for block in level]


# --- candidates


def has_value(symbol):
    """Whether it is a parameter or a variable; gdb calls a variable that is constant neither."""
    if symbol.is_argument or symbol.is_variable:
        return True
    return symbol.addr_class == gdb.SYMBOL_LOC_CONST and symbol.type.code != gdb.TYPE_CODE_ENUM


def fields(kind, prefix):
    """Members of a struct, also of what it inherits and of its nameless members."""
    for field in kind.fields():
        if not hasattr(field, "bitpos") or field.artificial:
            continue
        of = field.type.strip_typedefs()
        if not field.name or field.is_base_class:
            if of.code in RECORDS:
                yield from fields(of, prefix)
        elif NAME.match(field.name):
            yield prefix + field.name, field.type


def paths(random, text, kind, depth, amount):
    """Expressions of numbers that begin with `text`."""
    kind = kind.strip_typedefs()
    if kind.code in REFERENCES:
        kind = kind.target().strip_typedefs()
    if kind.code in NUMBERS or kind.code == gdb.TYPE_CODE_FLT:
        yield text
    elif kind.code not in RECORDS and kind.code != gdb.TYPE_CODE_ARRAY:
        yield text  # a complex number or vector
    if depth == 0:
        return
    inner = []
    if kind.code == gdb.TYPE_CODE_PTR:
        target = kind.target().strip_typedefs()
        if target.code in RECORDS:
            inner = list(fields(target, text + "->"))
    elif kind.code in RECORDS:
        inner = list(fields(kind, text + "."))
    elif kind.code == gdb.TYPE_CODE_ARRAY:
        try:
            low, high = kind.range()
        except gdb.error:
            return
        if not 0 <= high < 1 << 20:
            return
        of = kind.target()
        if of.strip_typedefs().code in NUMBERS and high < 64:
            yield text
        inner = [(f"{text}[{random.randint(0, high)}]", of)]
    random.shuffle(inner)
    for member, of in inner[:amount]:
        yield from paths(random, member, of, depth - 1, amount)


def variables(random, blocks, line, symtab, amount, optimised):
    """Expressions of what is visible in these blocks. Of locals only those that are declared
    before `line`: further up they may not have begun to be."""
    found = {}
    for block in blocks:
        for symbol in block:
            if symbol.name in found or not NAME.match(symbol.name or ""):
                continue
            if has_value(symbol):
                found[symbol.name] = symbol
    chosen = []
    for name, symbol in found.items():
        here = symbol.symtab is not None and symbol.symtab.filename == symtab.filename
        declared = symbol.is_argument or here and 0 < symbol.line < line
        if declared or optimised and symbol.line == 0:
            chosen.append((name, symbol.type))
    random.shuffle(chosen)
    return [path for name, kind in chosen[:amount] for path in paths(random, name, kind, 3, 2)][: amount * 2]


def free_names(task, random, amount):
    """Names that are not of the function's own variables."""
    names = list(task["free"])
    random.shuffle(names)
    return names[:amount]


def after_prologue(function, start, end):
    """Where gdb puts a breakpoint on the function."""
    for name in (function.linkage_name, function.name):
        try:
            point = gdb.Breakpoint(function=name, internal=True)
        except (gdb.error, RuntimeError):
            continue
        addresses = [place.address for place in point.locations]
        point.delete()
        inside = [address for address in addresses if start <= address < end]
        if inside:
            return min(inside)
    return None


def candidates(task):
    random_ = random.Random(task["seed"])
    symbols = re.findall(r"^\[ *\d+\] [tT] 0x([0-9a-f]+) (\S+)", gdb.execute("maint print msymbols", to_string=True), re.M)
    symbols = sorted({(int(address, 16), name) for address, name in symbols if not re.search(r"\.(cold|part)|^_start$|^_init$", name)})
    random_.shuffle(symbols)
    tables, entries, lines, copies, begun = {}, [], [], {}, set()
    for start, name in symbols:
        if len(entries) >= task["functions"]:
            break
        blocks = chain(start)
        if start in begun or not blocks or blocks[-1].start != start or not blocks[-1].function.symtab:
            continue
        begun.add(start)
        body, function = blocks[-1], blocks[-1].function
        symtab = function.symtab
        if not any(own in symtab.fullname() for own in task["own"]) and random_.random() < task["others"]:
            continue
        own = [body]
        entry = {
            "function": name,
            "start": start,
            "expressions": variables(random_, own, 0, symtab, task["names"], task["optimised"]),
        }
        entry["expressions"] += free_names(task, random_, 12)
        entries.append(entry)
        # Another one with link-time optimisation, where the function's has no lines, at which
        # gdb 13 crashes.
        with_lines = gdb.find_pc_line(start).symtab
        if with_lines is None:
            continue
        if with_lines.filename not in tables:
            rows = {}
            for row in with_lines.linetable():
                rows.setdefault(row.line, []).append(row.pc)
            tables[with_lines.filename] = rows
        rows = tables[with_lines.filename].items()
        inside = [(line, pc) for line, pcs in rows for pc in pcs if start < pc < body.end and line > 0]
        random_.shuffle(inside)
        for line, pc in inside[: task["lines"]]:
            around = scope(pc, True)
            if around is None:
                continue
            names = variables(random_, around, line, with_lines, task["names"], task["optimised"])
            names += free_names(task, random_, 8)
            lines.append({"file": with_lines.filename, "line": line, "expressions": names})
        for _, pc in inside[:40]:
            for block in chain(pc):
                inlined = block.function
                if inlined is None or block is body or inlined.name in copies or block.start == body.start:
                    continue
                names = variables(random_, [block], 0, inlined.symtab or symtab, task["names"], task["optimised"])
                names += free_names(task, random_, 8)
                copies[inlined.name] = {"function": inlined.name, "expressions": names}
    chosen = sorted(copies)
    random_.shuffle(chosen)
    return {"entries": entries, "lines": lines, "copies": [copies[name] for name in chosen[: task["copies"]]]}


# --- values


def dead(value):
    """Whether a value is, or came by, what was written over dead stack."""
    try:
        data = value if isinstance(value, bytes) else None
        if data is None:
            size = value.type.sizeof
            data = struct.pack("<Q", int(value) & (1 << 64) - 1)[: min(size, 8)]
    except (gdb.error, OverflowError, ValueError):
        return False
    return DEAD in data if len(data) == 1 else bytes([DEAD, DEAD]) in data


def text_at(address):
    """Up to a NUL, as far as texts are recorded; None if it cannot be read."""
    memory = gdb.selected_inferior()
    try:
        return bytes(memory.read_memory(address, 1024))
    except gdb.error:
        pass
    text = b""
    try:
        while len(text) < 1024 and b"\0" not in text:
            text += bytes(memory.read_memory(address + len(text), 1))
    except gdb.error:
        return None
    return text


def said(value):
    """A value in a form that does not depend on how it would be printed."""
    kind = value.type.strip_typedefs()
    if kind.code in REFERENCES:
        value = value.referenced_value()
        kind = value.type.strip_typedefs()
    if value.is_optimized_out:
        return {"none": "optimized out"}
    if kind.code in NUMBERS:
        answer = {"number": str(int(value)), "size": kind.sizeof, "dead": dead(value)}
        if kind.code == gdb.TYPE_CODE_ENUM:
            # values::READ; (values::READ | unknown: 0x40)
            parts = value.format_string().strip("()").split(" | ")
            answer["name"] = "|".join(part.split("::")[-1].replace("unknown: ", "") for part in parts)
        if kind.code == gdb.TYPE_CODE_PTR and kind.target().strip_typedefs().sizeof == 1:
            text = text_at(int(value))
            answer["text"] = None if text is None else text.split(b"\0")[0].decode("latin-1")
            answer["dead"] = answer["dead"] or text is not None and dead(text.split(b"\0")[0])
        return answer
    if kind.code == gdb.TYPE_CODE_FLT and kind.sizeof in (4, 8):
        packed = struct.pack("<f" if kind.sizeof == 4 else "<d", float(value))
        return {"float": str(int.from_bytes(packed, "little")), "size": kind.sizeof, "dead": dead(packed)}
    if kind.code == gdb.TYPE_CODE_ARRAY and kind.target().strip_typedefs().code in NUMBERS:
        low, high = kind.range()
        if high <= 0 and kind.target().strip_typedefs().sizeof == 1:
            # The end of a struct, as long as what was allocated.
            return said(value[0].address)
        items = [value[i] for i in range(low, high + 1)]
        return {"list": [str(int(item)) for item in items], "size": kind.target().sizeof, "dead": any(map(dead, items))}
    return {"other": f"{kind.code} {kind} = {value}"[:200]}


def in_frame(address):
    """The variables at an address that are somewhere in the frame, whatever instruction it is:
    of these, debug information is wrong until the frame is set up. None if gdb cannot tell."""
    try:
        found = gdb.execute(f"info scope *{address:#x}", to_string=True)
    except gdb.error:
        # gdb 13 gives up at an expression that it evaluates without trouble.
        return None
    found = re.findall(r"^(?:.*, )?Symbol (\S+) is (.*)", found, re.M)
    return {name for name, where in found if re.search("base|complex", where) and "multi" not in where}


class Expression:
    """A variable with its path. What is not of these blocks is looked up by gdb, which looks from
    the innermost function at `pc` on: nobody knows if that is another one."""

    def __init__(self, text, blocks, pc):
        self.text = text
        self.steps = STEP.findall(text)
        plain = re.match(r"\w+(?!\w*[:'])", text)
        self.name = name = plain.group() if plain else text
        self.symbol = None
        around = list(blocks or ())
        local = any(s.name == name and has_value(s) for block in around for s in block)
        everything = blocks is not None and len(blocks) == len(chain(pc))
        self.free = "::" in text or not local
        self.function = next((b.function for b in around if b.function), None) if everything else None
        for block in around:
            found = [s for s in block if s.name == name and has_value(s)]
            # rustc may describe a parameter twice, of which LLVM keeps one.
            found.sort(key=lambda s: s.addr_class == gdb.SYMBOL_LOC_OPTIMIZED_OUT)
            if found:
                self.symbol = found[0]
                return

    def at(self, frame):
        if self.free:
            return self.evaluated(frame)
        if self.symbol is None:
            return {"none": "no such symbol"}
        came_by_dead = False
        try:
            value = self.symbol.value(frame)
            for arrow, dot, index in self.steps:
                if value.type.strip_typedefs().code in REFERENCES:
                    value = value.referenced_value()
                # Nothing is written of what has no size, whatever its members are said to be.
                nothing = value.type.sizeof == 0
                came_by_dead = came_by_dead or nothing or dead(value)
                if arrow:
                    value = value.dereference()[arrow]
                elif dot:
                    value = value[dot]
                else:
                    value = value[int(index)]
            answer = said(value)
        except gdb.MemoryError as error:
            answer = {"fault": str(error)}
        except (gdb.error, RuntimeError, OverflowError, TypeError, ValueError) as error:
            text = str(error)
            answer = {"none": "optimized out"} if "optimized out" in text else {"none": text}
        if came_by_dead:
            answer["dead"] = True
        return answer


    def evaluated(self, frame):
        # At the entry of a copy gdb is still in the function around it.
        if self.function is None or frame.function() is None or frame.function().name != self.function.name:
            return None
        frame.select()
        try:
            return said(gdb.parse_and_eval(self.text))
        except gdb.MemoryError as error:
            return {"fault": str(error)}
        except (gdb.error, RuntimeError) as error:
            text = str(error)
            return {"none": "optimized out" if "optimized out" in text else "no such symbol: " + text}


def bury(sp, below):
    start = (sp - below - DEAD_BYTES) & ~7
    try:
        gdb.selected_inferior().write_memory(start, bytes([DEAD]) * (sp - below - start))
    except gdb.error:
        pass


# What a function does first that needs its frame; no loop comes back to that.
MAKES_FRAME = re.compile(rb"^(\xf3\x0f\x1e\xfa)?(\x55|\x53|\x41[\x54-\x57]|\x48\x83\xec|\x48\x81\xec)", re.S)


class Place(gdb.Breakpoint):
    """Counts hits; at the first ones the expressions are evaluated."""

    def __init__(self, address):
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self.uses = []  # with "here" or "after"
        self.left = MOST_STOPS

    def stop(self):
        frame = gdb.newest_frame()
        sp = int(frame.read_register("rsp")) & (1 << 64) - 1
        below = 128
        for use, kind in self.uses:
            if kind == "after":
                if use["open"]:
                    use["open"] = False
                    use["after_hits"][-1] = [expression.at(frame) for expression in use["made_after"]]
                continue
            if use["makes_frame"]:
                below = 0
        bury(sp, below)
        for use, kind in self.uses:
            if kind == "here" and len(use["hits"]) < use["limit"]:
                use["hits"].append([expression.at(frame) for expression in use["made"]])
                use["after_hits"].append(None)
                use["open"] = True
        self.left -= 1
        return self.left == 0


def result(kind, frame):
    """The result of a function that is about to return: a number is in rax, a floating point
    number in xmm0 (System V AMD64 psABI, 3.2.3)."""
    kind = kind.strip_typedefs()
    if kind.code in REFERENCES:
        return {"number": str(int(frame.read_register("rax")) & (1 << 64) - 1), "size": 8}
    if kind.code in NUMBERS and kind.sizeof <= 8:
        value = int(frame.read_register("rax")) & (1 << 8 * kind.sizeof) - 1
        return said(gdb.Value(value.to_bytes(kind.sizeof, "little"), kind))
    if kind.code == gdb.TYPE_CODE_FLT and kind.sizeof in (4, 8):
        return said(frame.read_register("xmm0")["v4_float" if kind.sizeof == 4 else "v2_double"][0])
    # Of a vector the first eight bytes are shown.
    if kind.code == gdb.TYPE_CODE_ARRAY and kind.sizeof in (8, 16):
        first = int(frame.read_register("xmm0")["v2_int64"][0]) & (1 << 64) - 1
        return {"number": str(first), "size": 8}
    return {"other": str(kind)}


class Exit(gdb.Breakpoint):
    """A `ret` of a function whose result is wanted."""

    def __init__(self, use, address):
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self.use = use

    def stop(self):
        if len(self.use["hits"]) < self.use["limit"]:
            self.use["hits"].append([result(self.use["kind"], gdb.newest_frame())])
        return False


def place_all(task, bias):
    places, uses = {}, []

    def at(address):
        if address not in places:
            places[address] = Place(address)
        return places[address]

    for asked in task["places"]:
        address = asked["address"] + bias
        blocks, around = scope(address, asked["scope"]), chain(address)
        use = dict(asked, hits=[], after_hits=[], open=False, limit=task["hits"], in_frame=[])
        use["no_scope"] = blocks is None
        use["made"] = [Expression(text, blocks, address) for text in asked["expressions"]]
        # The function's first instruction, and its names are meant.
        outermost = blocks is not None and not any(block.function for block in blocks[:-1])
        use["entry"] = outermost and address == around[-1].start
        first = bytes(gdb.selected_inferior().read_memory(address, 8))
        use["makes_frame"] = use["entry"] and bool(MAKES_FRAME.match(first))
        at(address).uses.append((use, "here"))
        if use["entry"]:
            names = in_frame(address) or ()
            use["in_frame"] = [expression.name in names for expression in use["made"]]
            after = after_prologue(around[-1].function, address, around[-1].end)
            if after == address and not task["optimised"]:
                # A function without a prologue.
                use["entry"] = False
            elif after is not None and after != address:
                blocks = scope(after, False)
                use["made_after"] = [Expression(text, blocks, after) for text in asked["expressions"]]
                at(after).uses.append((use, "after"))
        uses.append(use)
    return uses, places


def values(task):
    gdb.execute("starti", to_string=True)
    pid = gdb.selected_inferior().pid
    with open(f"/proc/{pid}/maps") as maps:
        start = min(int(line.split("-")[0], 16) for line in maps if task["program"] in line)
    bias = start if task["pie"] else 0
    uses, places = place_all(task, bias)
    results = []
    for asked in task["results"]:
        function = chain(asked["entry"] + bias)[-1].function
        use = dict(asked, hits=[], limit=task["hits"], kind=function.type.target())
        results.append(use)
        for address in asked["exits"]:
            Exit(use, address + bias)
    while True:
        gdb.execute("continue", to_string=True)
        if gdb.selected_inferior().pid == 0:
            break
        # At a place that was stopped at often enough.
        places[gdb.newest_frame().pc()].enabled = False

    def keep(use):
        names = ("hits", "after_hits", "no_scope", "entry", "in_frame")
        return {name: use.get(name) for name in names}

    return {"places": [keep(use) for use in uses], "results": [keep(use) for use in results]}


gdb.execute("set breakpoint pending off")
gdb.execute("set debuginfod enabled off")
gdb.execute("set confirm off")
with open(os.environ["CAPRIOLE_TASK"]) as task_file:
    asked_for = json.load(task_file)
answered = candidates(asked_for) if asked_for["task"] == "candidates" else values(asked_for)
with open(os.environ["CAPRIOLE_ANSWER"], "w") as answer_file:
    json.dump(answered, answer_file)
