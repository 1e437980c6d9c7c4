/* Static markers in C++, also in templates: every instance is a site of its own.
 *
 *   markers-cpp [SECONDS]    until Ctrl-C, or for as many seconds
 */
#include <capriole/marker.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace shop {

enum class Kind : unsigned char { small, large };

template <typename T>
class Queue {
public:
  void push(const T &item, Kind kind) {
    items.push_back(item);
    CAPRIOLE_MARK(shop, push, "items=%zu bytes=%zu kind=%d", items.size(), sizeof(T),
                  static_cast<int>(kind));
  }

  T pop() {
    T item = items.back();
    items.pop_back();
    CAPRIOLE_MARK_GUARDED(shop, pop, "items=%zu first=%p", items.size(),
                          static_cast<const void *>(items.data()));
    return item;
  }

private:
  std::vector<T> items;
};

} // namespace shop

int main(int argc, char **argv) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 1000000);
  std::printf("process %d queues\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  shop::Queue<long> numbers;
  shop::Queue<std::string> names;
  for (long number = 0; clock::now() < end; number++) {
    numbers.push(number, shop::Kind::small);
    names.push(std::to_string(number), shop::Kind::large);
    const std::string name = names.pop();
    CAPRIOLE_MARK(shop, done, "number=%ld name=%s", numbers.pop(), name.c_str());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}
