#include "kinds.h"

#include <string>

static std::string kept;

struct Scope {
  explicit Scope(int given) : value(given) {}
  ~Scope() { kept += std::to_string(value); }
  int value;
};

enum class Kind : unsigned char { small, large };

template <typename T>
T templated(T value) {
  Scope scope(2);
  CAPRIOLE_MARK(kinds, templated, "size=%zu at=%p", sizeof(T), static_cast<const void *>(&value));
  for (int i = 0; i < 2; i++) {
    std::string text(20, 'x');
    CAPRIOLE_MARK(kinds, scoped, "i=%d text=%s", i, text.c_str());
    if (i) {
      Scope inner(i);
      CAPRIOLE_MARK_GUARDED(kinds, inner, "%d", inner.value);
    }
  }
  return value;
}

struct Base {
  virtual ~Base() {}
  virtual int call(int value) {
    auto lambda = [&](int more) {
      CAPRIOLE_MARK(kinds, lambda, "%d %d", value, more);
      return value + more;
    };
    return lambda(inlined(value));
  }
};

int main(int argc, char **) {
  Scope scope(1);
  const Kind kind = argc > 1 ? Kind::large : Kind::small;
  CAPRIOLE_MARK(kinds, cxx, "%d %p", static_cast<int>(kind), static_cast<void *>(nullptr));
  try {
    if (argc > 5)
      throw 1;
    CAPRIOLE_MARK(kinds, not_thrown);
  } catch (int error) {
    Scope caught(error);
    CAPRIOLE_MARK(kinds, caught, "%d", error);
  }
  switch (argc) {
  case 1:
    CAPRIOLE_MARK(kinds, one, "%d", argc);
    break;
  case 2: {
    Scope inner(2);
    CAPRIOLE_MARK(kinds, two);
    break;
  }
  default:
    CAPRIOLE_MARK(kinds, more);
  }
  Base base;
  int sum = base.call(argc) + templated(1) + templated('c') + static_cast<int>(templated(2.0));
  return all_kinds(argc) + sum == 0;
}
