/*
 * Preloaded into the User Mode Linux process, never into its guest.
 *
 * UML 6.1 keeps a guest process's vector registers in a buffer of fixed size (2696 bytes: up to and
 * including PKRU) and restores them with PTRACE_SETREGSET(NT_X86_XSTATE). The host accepts only a complete
 * image. If the CPU has more components (AMX: 11008 bytes), the host returns EFAULT, and UML dies at its
 * first process with "put_fp_registers". Reads succeed: GETREGSET cuts the image at the end of the buffer.
 *
 * This library therefore completes the image before the host receives it: UML's buffer, followed by
 * zeroes. XSTATE_BV names only the components inside UML's buffer. The CPU resets each component whose bit
 * is clear. The guest can use all components except those beyond the buffer (AMX tiles).
 *
 * Image layout: Intel SDM vol. 1, 13.4 (XSAVE area, standard format); offsets and sizes: CPUID leaf 0xD.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

enum { XSTATE_BV = 512, HEADER_END = 576 };

/* Static, because UML's kernel stacks are small. One buffer is enough, because UML has one CPU and no preemption. */
static _Alignas(64) unsigned char whole[1 << 16];

/* Returns the components that end within the first `length` bytes, always including x87 and SSE. */
static uint64_t components_within(size_t length)
{
	uint64_t within = 3;
	for (unsigned i = 2; i < 63; i++) {
		unsigned size, offset, c, d;
		if (__get_cpuid_count(0xD, i, &size, &offset, &c, &d) && size && offset + (size_t)size <= length)
			within |= 1ull << i;
	}
	return within;
}

long ptrace(enum __ptrace_request request, ...)
{
	static long (*real)(enum __ptrace_request, ...);
	static size_t host_length, known_length; /* 0: the host has rejected no image yet */
	static uint64_t known_components;

	va_list arguments;
	va_start(arguments, request);
	long pid = va_arg(arguments, long);
	void *address = va_arg(arguments, void *);
	void *data = va_arg(arguments, void *);
	va_end(arguments);

	if (!real)
		real = (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
	if (request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE)
		return real(request, pid, address, data);

	const struct iovec *given = data;
	if (!host_length) {
		long done = real(request, pid, address, data);
		if (done == 0 || errno != EFAULT)
			return done;
		struct iovec image = { whole, sizeof whole };
		if (real(PTRACE_GETREGSET, pid, address, &image) < 0)
			return -1;
		host_length = image.iov_len;
	}
	if (given->iov_len < HEADER_END || given->iov_len >= host_length)
		return real(request, pid, address, data);
	if (known_length != given->iov_len) {
		known_components = components_within(given->iov_len);
		known_length = given->iov_len;
	}

	uint64_t present;
	memcpy(whole, given->iov_base, given->iov_len);
	memset(whole + given->iov_len, 0, host_length - given->iov_len);
	memcpy(&present, whole + XSTATE_BV, sizeof present);
	present &= known_components;
	memcpy(whole + XSTATE_BV, &present, sizeof present);
	struct iovec image = { whole, host_length };
	return real(request, pid, address, &image);
}
