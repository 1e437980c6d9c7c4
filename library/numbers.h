/* Numbers that C, the assembler and the generator of detours share. Tests compare them. */
#define FRAME			432	/* crates/codegen, module `handler` */
#define RED_ZONE		128

#define SITE_SET		0
#define SITE_ADDRESS		8
#define SITE_NEXT		16

#define SET_BEFORE		0
#define SET_BEFORE_ARGUMENT	8
#define SET_AFTER		16
#define SET_AFTER_ARGUMENT	24

#define THREAD_FRAME		0

#define ARGUMENT_HANDLER	136
#define ARGUMENT_STACK		144

#define RETURNS			4096	/* calls whose return addresses are replaced, at a time */
#define RECORDS			256
