/*
 * Its names and texts hold ESC1 and ESC2, in place of which a test writes what a terminal acts
 * on. It calls hostileESC1work once a line that it reads, and says "called".
 */
#include <capriole/marker.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

volatile int sum;

struct valueESC2 {
    int fieldESC1;
};

__attribute__((noipa)) int hostileESC1work(struct valueESC2 *givenESC1, const char *textESC2)
{
    sum += givenESC1->fieldESC1 + (int)strlen(textESC2);
    CAPRIOLE_MARK(hostile, work, "number=%d text=%s ESC1", givenESC1->fieldESC1, textESC2);
    return sum;
}

__attribute__((noipa)) int plain(const char *text)
{
    return hostileESC1work(&(struct valueESC2){ (int)strlen(text) }, text);
}

int main(void)
{
    char line[64];
    prctl(PR_SET_NAME, "ESC1 ESC2");
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        plain("a text with ESC1 and ESC2");
        CAPRIOLE_MARK_TEXT("a text of the program with ESC1 and ESC2");
        puts("called");
        fflush(stdout);
    }
    printf("ok sum=%d\n", sum);
    return 0;
}
