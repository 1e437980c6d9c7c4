"""Starts a program and has Frida call a handler compiled from C before each call of its
function.

Argument: the program, which begins with the line `ok ADDRESS`. That line is said when the
handler is in place; then what comes in goes to the program, line by line, and its answers
come out. At the end of the input the last line is how often the handler was called.
"""

import os
import subprocess
import sys

try:
    import frida
except ImportError:
    sys.exit("Frida is not installed for this Python (make bench-peers does that)")

SCRIPT = """
const hits = Memory.alloc(8);
const handler = new CModule(`
#include <gum/guminterceptor.h>
extern volatile guint64 hits;
void onEnter(GumInvocationContext *context) { hits++; }
`, { hits });
Interceptor.attach(ptr("%s"), handler);
Interceptor.flush();
rpc.exports = { hits() { return hits.readU64().toString(); } };
"""

pipe = subprocess.PIPE
program = subprocess.Popen(sys.argv[1:], stdin=pipe, stdout=pipe, text=True, bufsize=1)
first = program.stdout.readline()
session = frida.attach(program.pid)
script = session.create_script(SCRIPT % first.split()[1])
script.load()
print(first, end="", flush=True)
for line in iter(sys.stdin.readline, ""):
    program.stdin.write(line)
    print(program.stdout.readline(), end="", flush=True)
print(script.exports_sync.hits(), flush=True)
# The program is killed, and not asked to end: Frida's agent intercepts exit() and lets it wait
# until the agent has ended its work. detach() returns before the agent has gone, and a program that
# exits in between waits for a thread that is no more. What stays of Frida ends with the namespaces.
program.kill()
program.wait()
os._exit(0)
