/*
 * SPDX-License-Identifier: Apache-2.0
 *
 * Writes all memory behind the largest prefetchable BAR of a PCI function
 * twice, and reads it back: first each word has a content of its own, then
 * zeros, which stay. None is read before all are written: where the memory is
 * smaller than the BAR, a word appears in several places, and the last content
 * stays.
 *
 *     GPGPU_ADDRESS=0000:01:00.0 scrub-bar [ROOT_OF_SYSFS]
 *
 * Its last line is "memory_bytes=N verified_bytes=M" and how it was done.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

/* include/linux/ioport.h */
#define IORESOURCE_MEM 0x200
#define IORESOURCE_PREFETCH 0x2000
#define IORESOURCE_UNSET 0x20000000

#define BARS 6

struct bar {
	int number;
	uint64_t size;
};

static char folder[512];

static void fail(const char *what, const char *name)
{
	fprintf(stderr, "scrub-bar: %s %s/%s: %s\n", what, folder, name,
		strerror(errno));
	exit(1);
}

static void on_bus_error(int number)
{
	static const char text[] =
		"scrub-bar: an access to the BAR was a bus error\n";

	(void)number;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(3);
	_exit(2);
}

static int opened(const char *name, int flags)
{
	char path[sizeof(folder) + 32];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return open(path, flags | O_CLOEXEC);
}

static struct bar largest(void)
{
	struct bar found = { -1, 0 };
	uint64_t start, end, flags;
	int fd = opened("resource", O_RDONLY);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	int number;

	if (!file)
		fail("cannot read", "resource");
	for (number = 0; number < BARS; number++) {
		if (fscanf(file, "%" SCNx64 " %" SCNx64 " %" SCNx64, &start,
			   &end, &flags) != 3)
			fail("cannot read", "resource");
		if ((flags & IORESOURCE_MEM) && (flags & IORESOURCE_PREFETCH) &&
		    !(flags & IORESOURCE_UNSET) && end > start &&
		    end - start + 1 > found.size) {
			found.number = number;
			found.size = end - start + 1;
		}
	}
	fclose(file);
	return found;
}

static void enable(void)
{
	int fd = opened("enable", O_WRONLY);

	if (fd < 0 || write(fd, "1", 1) != 1)
		fail("cannot write", "enable");
	close(fd);
}

static volatile uint64_t *mapped(struct bar bar)
{
	char name[32];
	void *memory;
	int fd;

	snprintf(name, sizeof(name), "resource%d_wc", bar.number);
	fd = opened(name, O_RDWR);
	if (fd < 0) {
		snprintf(name, sizeof(name), "resource%d", bar.number);
		fd = opened(name, O_RDWR);
	}
	if (fd < 0)
		fail("cannot open", name);
	memory = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		fail("cannot map", name);
	close(fd);
	return memory;
}

/* A bijection of 64 bits (splitmix64), so no two words are equal. */
static uint64_t content(uint64_t seed, uint64_t word)
{
	uint64_t mixed = seed + word * 0x9e3779b97f4a7c15;

	mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
	return mixed ^ (mixed >> 31);
}

static uint64_t equal_bytes(uint64_t found, uint64_t expected)
{
	uint64_t differing = found ^ expected, equal = 0;
	int byte;

	for (byte = 0; byte < 8; byte++)
		equal += !((differing >> (8 * byte)) & 0xff);
	return equal;
}

/* Returns how many bytes are as they were written. */
static uint64_t filled(volatile uint64_t *memory, uint64_t size, uint64_t seed,
		       int zeros)
{
	uint64_t words = size / 8, word, verified = 0;

	for (word = 0; word < words; word++)
		memory[word] = zeros ? 0 : content(seed, word);
	/* What is still in a buffer of write combining. */
	__sync_synchronize();
	for (word = 0; word < words; word++)
		verified += equal_bytes(memory[word],
					zeros ? 0 : content(seed, word));
	return verified;
}

int main(int argc, char **argv)
{
	const char *address = getenv("GPGPU_ADDRESS");
	volatile uint64_t *memory;
	uint64_t seed, first, second;
	struct bar bar;

	if (!address || argc > 2) {
		fprintf(stderr, "usage: GPGPU_ADDRESS=0000:01:00.0 scrub-bar "
				"[ROOT_OF_SYSFS]\n");
		return 1;
	}
	snprintf(folder, sizeof(folder), "%s/bus/pci/devices/%s",
		 argc > 1 ? argv[1] : "/sys", address);
	if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
		fail("no random number for", "");
	bar = largest();
	if (bar.number < 0) {
		printf("memory_bytes=0 verified_bytes=0 %s has no "
		       "prefetchable BAR with an address\n", address);
		return 0;
	}
	signal(SIGBUS, on_bus_error);
	enable();
	memory = mapped(bar);
	first = filled(memory, bar.size, seed, 0);
	second = filled(memory, bar.size, 0, 1);
	printf("memory_bytes=%" PRIu64 " verified_bytes=%" PRIu64
	       " through BAR %d of %s\n", bar.size,
	       first < second ? first : second, bar.number, address);
	return 0;
}
