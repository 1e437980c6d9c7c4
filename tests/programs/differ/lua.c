/* The Lua interpreter with a script of its own: the same calls in every run. */
#include <stdio.h>

#include "lauxlib.h"
#include "lualib.h"

static const char script[] =
	"local t = {} "
	"for i = 1, 8 do t[i] = i * i % 7 + i / 4; t['k' .. i] = string.format('%5.2f|%d', i / 3, i) end "
	"table.sort(t, function(a, b) return a > b end) "
	"local s = table.concat(t, ',') "
	"for w in s:gmatch('%d+') do t[#t + 1] = math.tointeger(tonumber(w)) or w end "
	"local M = setmetatable({}, { __index = function(_, k) return k .. '!' end, "
	"  __add = function(a, b) return 40 + b end, __close = function() end }) "
	"local co = coroutine.wrap(function(...) for i = 1, select('#', ...) do "
	"  coroutine.yield((select(i, ...))) end return 'end' end) "
	"local got = { co('x', 2.5, nil), co(), co(), M + 2, M.name } "
	"local function fact(n) if n < 2 then return 1 end return n * fact(n - 1) end "
	"local ok, message = pcall(error, { code = 7 }) "
	"local chunk = load('local a <const>, b = ... ; goto l ::l:: return a // 3 | b << 2, -a, not b, a .. b') "
	"local q = { chunk(17, 5) } "
	"do local c <close> = M end "
	"collectgarbage() "
	"return string.rep(utf8.char(8364), 2) .. #s .. fact(9) .. tostring(ok) .. message.code .. #got .. q[1] .. s:upper():sub(2, 9)";

int main(void)
{
	lua_State *L = luaL_newstate();
	int failed;
	luaL_openlibs(L);
	failed = luaL_dostring(L, script);
	printf("ok lua %s\n", lua_tostring(L, -1));
	lua_close(L);
	return failed;
}
