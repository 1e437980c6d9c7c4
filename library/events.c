/* Events by text, and records that the program writes itself. */
#include "internal.h"
#include <fcntl.h>
#include <sys/syscall.h>

/* Markers in hit.S: sixteen bytes each, a nop of five bytes and a return. */
extern HIDDEN const char capriole_records[];
static struct capriole_record *taken[RECORDS];
static unsigned char lost[RECORDS];	/* the event is gone */

PUBLIC void capriole_record_nothing(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e, uint64_t f)
{
	(void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
}

static int enable(const char *event, const char *name, u64 address)
{
	struct message message;
	int result = start_helper();
	if (result)
		return result;
	new_message(&message, EVENT_ADD);
	put_text(&message, event);
	put_text(&message, name);
	put(&message, address);
	result = ask(&message);
	if (!result)
		result = (int)take(&message);
	drop_message(&message);
	return result;
}

static int disable(int event)
{
	struct message message;
	if (!has_helper())
		return fail(-ENOENT, has_left() ? "there is no such event: the helper process has ended, and all "
						  "events with it" : "there is no such event: nothing was "
						  "enabled", NULL);
	new_message(&message, EVENT_REMOVE);
	put(&message, (u64)(long)event);
	int result = ask(&message);
	drop_message(&message);
	return result;
}

PUBLIC int capriole_event_enable(const char *event)
{
	int failed = begin();
	return failed ? failed : end(enable(event, NULL, 0));
}

PUBLIC int capriole_event_disable(int event)
{
	int failed = begin();
	return failed ? failed : end(disable(event));
}

static int write_texts(enum request kind, u64 argument, int fd)
{
	struct message message;
	size_t size;
	/* Before records are taken from the helper that could not be written. */
	long flags = SYS2(SYS_fcntl, fd, F_GETFL);
	if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
		return fail(-EBADF, "the text cannot be written to the descriptor", NULL);
	if (!has_helper()) {
		return has_left() ? fail(-EPIPE, "the helper process has ended, and all events with it: enable "
				    "them again", NULL) : 0;
	}
	new_message(&message, kind);
	put(&message, argument);
	int result = ask(&message);
	if (!result) {
		const char *text = take_text(&message, &size);
		result = write_all(fd, text, size);
	}
	drop_message(&message);
	return result;
}

PUBLIC int capriole_event_rows(int event, int fd)
{
	int failed = begin();
	return failed ? failed : end(write_texts(ROWS, (u64)(long)event, fd));
}

PUBLIC int capriole_event_read(int fd)
{
	int failed = begin();
	return failed ? failed : end(write_texts(READ, 0, fd));
}

static int start_recording(const char *directory)
{
	/* Not on the stack: see start_helper(). */
	static char room[4096];
	struct message message;
	long size = 0;
	if (!directory || !*directory)
		return fail(-EINVAL, "no directory is given for the trace", NULL);
	if (!has_helper() && has_left())
		return fail(-EPIPE, is_forked() ? "this process was forked, and has no events: enable some before "
						  "the trace is started" :
						  "the helper process has ended, and all events with it: enable them "
						  "again before the trace is started", NULL);
	int result = start_helper();
	if (result)
		return result;
	if (*directory != '/') {
		/* The helper has another working directory. */
		size = SYS2(SYS_getcwd, room, sizeof room);
		if (size < 0 || *room != '/')
			return fail(size < 0 ? (int)size : -ENOENT,
				    "the working directory is not known; give the trace an absolute path", NULL);
		size_t at = (size_t)size - 1;
		if (at + 2 + length(directory) > sizeof room)
			return fail(-ENAMETOOLONG, "the path of the trace is too long", NULL);
		say(room, sizeof room, &at, "/");
		say(room, sizeof room, &at, directory);
		room[at] = 0;
		directory = room;
	}
	new_message(&message, RECORD_START);
	put_text(&message, directory);
	result = ask(&message);
	drop_message(&message);
	return result;
}

static int stop_recording(void)
{
	struct message message;
	if (!has_helper() && has_left() && !is_forked())
		return fail(-EPIPE, "the helper process has ended, and has completed the trace unless it was killed", NULL);
	if (!has_helper())
		return fail(-ENOENT, is_forked() ? "no trace of this process is being written: it was forked by one that "
						   "may have one" : "no trace is being written", NULL);
	new_message(&message, RECORD_STOP);
	int result = ask(&message);
	drop_message(&message);
	return result;
}

PUBLIC int capriole_record_start(const char *directory)
{
	int failed = begin();
	return failed ? failed : end(start_recording(directory));
}

PUBLIC int capriole_record_stop(void)
{
	int failed = begin();
	return failed ? failed : end(stop_recording());
}

/* True if the event of a marker is gone, with the helper that has added it. */
static int is_lost(unsigned number)
{
	return lost[number] || !has_helper();
}

/* Returns the number of the marker of a record, or RECORDS if it has none. */
static unsigned marker_of(const struct capriole_record *record)
{
	u64 number = ((u64)record->write - (u64)capriole_records) / 16;
	return record->number && number < RECORDS && taken[number] == record ? (unsigned)number : RECORDS;
}

static int enable_record(struct capriole_record *record)
{
	if (!record || !record->name)
		return fail(-EINVAL, "the record has no name", NULL);
	unsigned number = marker_of(record);
	if (record->number && (number == RECORDS || !is_lost(number)))
		return fail(-EINVAL, "the record is enabled already, or not initialised", NULL);
	if (!record->number)
		for (number = 0; number < RECORDS && taken[number];)
			number++;
	if (number == RECORDS)
		return fail(-ENOSPC, "no more than 256 records can be enabled at a time", NULL);
	const char *marker = capriole_records + 16 * number;
	int event = enable(record->fields, record->name, (u64)marker);
	if (event < 0)
		return event;
	taken[number] = record;
	lost[number] = 0;
	record->number = event;
	record->write = (void (*)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t))(u64)marker;
	return 0;
}

static int disable_record(struct capriole_record *record)
{
	if (!record || !record->number)
		return fail(-EINVAL, "the record is not enabled", NULL);
	unsigned number = marker_of(record);
	if (number == RECORDS)
		return fail(-EINVAL, "the record is not initialised, or was written over", NULL);
	int failed = is_lost(number) ? 0 : disable(record->number);
	if (failed)
		return failed;
	record->write = capriole_record_nothing;
	record->number = 0;
	taken[number] = NULL;
	return 0;
}

/* The helper that has enabled them is gone, or there is none any more: they can be enabled again. They
 * keep their markers, as they may be called, and may be in memory that is gone. */
HIDDEN void forget_records(void)
{
	/* Volatile: not a call of memset(3), which may have probes. */
	for (unsigned number = 0; number < RECORDS; number++)
		((volatile unsigned char *)lost)[number] = 1;
}

PUBLIC int capriole_record_enable(struct capriole_record *record)
{
	int failed = begin();
	return failed ? failed : end(enable_record(record));
}

PUBLIC int capriole_record_disable(struct capriole_record *record)
{
	int failed = begin();
	return failed ? failed : end(disable_record(record));
}
