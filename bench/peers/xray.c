/* The flight data recorder of LLVM's XRay on the function, from before main() until the
   program has ended its work; then the records are written to a file that the option
   xray_logfile_base in $XRAY_OPTIONS begins the name of. */

#include <stdio.h>
#include <stdlib.h>

/* xray_interface.h and xray_log_interface.h are C++; these are their declarations. */
enum { OF_REGISTRATION_OK = 0, OF_PATCH_SUCCESS = 1, OF_LOG_INITIALIZED = 2, OF_LOG_FINALIZED = 4, OF_LOG_FLUSHED = 2 };
int __xray_log_select_mode(const char *mode);
int __xray_log_init_mode(const char *mode, const char *options);
int __xray_log_finalize(void);
int __xray_log_flushLog(void);
int __xray_patch(void);
int __xray_unpatch(void);

__attribute__((constructor)) static void begin(void)
{
    const char *options = getenv("CAPRIOLE_XRAY_FDR");
    if (__xray_log_select_mode("xray-fdr") != OF_REGISTRATION_OK ||
        __xray_log_init_mode("xray-fdr", options ? options : "") != OF_LOG_INITIALIZED ||
        __xray_patch() != OF_PATCH_SUCCESS) {
        fprintf(stderr, "XRay's flight data recorder cannot begin\n");
        exit(1);
    }
}

__attribute__((destructor)) static void end(void)
{
    __xray_unpatch();
    if (__xray_log_finalize() != OF_LOG_FINALIZED || __xray_log_flushLog() != OF_LOG_FLUSHED) {
        fprintf(stderr, "XRay's flight data recorder cannot write\n");
        _Exit(1);
    }
}
