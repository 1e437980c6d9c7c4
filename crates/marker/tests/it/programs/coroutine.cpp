// Markers in a coroutine, beside destructors. C++20.
#include <capriole/marker.h>
#include <coroutine>

static int gone;

struct guard {
  ~guard() { gone++; }
};

struct task {
  struct promise_type {
    task get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}
  };
  std::coroutine_handle<promise_type> handle;
};

static task work(int n) {
  guard first;
  CAPRIOLE_MARK(corner, begin, "n=%d", n);
  co_await std::suspend_always{};
  for (int i = 0; i < n; i++) {
    guard each;
    CAPRIOLE_MARK(corner, step, "i=%d n=%d", i, n);
    CAPRIOLE_MARK_GUARDED(corner, guarded, "i=%d", i);
  }
  CAPRIOLE_MARK_TEXT("end");
  CAPRIOLE_MARK(corner, end);
}

int main() {
  task t = work(3);
  t.handle.resume();
  return gone == 4 ? 0 : 1;
}
