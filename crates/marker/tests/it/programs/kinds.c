#include "kinds.h"

int main(int argc, char **argv) {
  (void)argv;
  return all_kinds(argc) == 0;
}
