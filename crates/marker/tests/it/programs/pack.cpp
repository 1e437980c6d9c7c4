// Markers in lambdas that a parameter pack is expanded over. C++17.
#include <capriole/marker.h>

template <typename... T>
static int all(T... values) {
  auto one = [](auto... x) {
    int sum = 0;
    ((sum += [&] {
       CAPRIOLE_MARK(corner, begin, "x=%d", static_cast<int>(x));
       return static_cast<int>(x);
     }()),
     ...);
    return sum;
  };
  ([&] { CAPRIOLE_MARK(corner, step, "v=%d", static_cast<int>(values)); }(), ...);
  ([&] { CAPRIOLE_MARK_GUARDED(corner, guarded, "v=%d", static_cast<int>(values)); }(), ...);
  ([&](auto) { CAPRIOLE_MARK(corner, end); }(values), ...);
  return one(values...);
}

int main() {
  CAPRIOLE_MARK_TEXT("a text");
  capriole_mark_text_to(-1, "a text");
  return all(1, 2, 3L) == 6 ? 0 : 1;
}
