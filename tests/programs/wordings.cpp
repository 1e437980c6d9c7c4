// What messages are about: a virtual thunk, whose line is that of a declaration; a function with a
// tag of the ABI; an indirect function.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

struct Base {
    virtual ~Base() {}
    virtual int value(int n) = 0;
    long first;
};

struct Other {
    virtual ~Other() {}
    virtual int other(int n) = 0;
    long second;
};

struct Both : Base, Other {
    int value(int n) override { return n + 1; }
    int other(int n) override; // only the thunk has this line
};

int Both::other(int n) {
    return n + 2;
}

struct Here : Base, Other {
    int value(int n) override { return n + 3; }
    int other(int n) override { return n + 4; } // the thunk and the function
};

__attribute__((noinline)) std::string tagged(int n) {
    return std::string(n, 'x');
}

int main(int argc, char **argv) {
    Both both;
    Here here;
    Other *volatile others[] = {&both, &here};
    Base *volatile bases[] = {&both, &here};
    int sum = tagged(argc).size();
    for (int i = 0; i < 2; i++)
        sum += others[i]->other(argc) + bases[i]->value(argc);
    size_t (*volatile length)(const char *) = strlen;
    sum += length(argv[0]) > 0;
    printf("ok wordings\n");
    fflush(stdout);
    if (argc > 1) // until it is told to end
        while (getchar() != EOF) {
        }
    return sum == 0;
}
