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
#define SET_READ_ONLY		32
#define READS			1
#define READS_SIMPLY		2
#define READS_ENTRY		3
#define READS_EXIT		4

#define THREAD_FRAME		0
#define THREAD_LAST		32
#define THREAD_FREE		40
#define THREAD_MOST		48
#define THREAD_UNORDERED	56

#define PROBE_INSIDE		120

#define INSIDE_OUTER		0
#define INSIDE_ENTRY		8
#define INSIDE_HANDLER		16
#define INSIDE_STAMP		24

#define OPEN_INSIDE		0
#define OPEN_PROBE		8
#define OPEN_RETURN		16
#define OPEN_SP			24
#define OPEN_DATA		32
#define OPEN_BEFORE		40
#define OPEN_STUB		48
#define OPEN_STAMP		56
#define OPEN_SIZE		64

#define ARGUMENT_HANDLER	136
#define ARGUMENT_STACK		144

#define RETURNS			4096	/* calls whose return addresses are replaced, at a time */
#define RECORDS			256
