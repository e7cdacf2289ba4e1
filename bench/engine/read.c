/* How fast memory is read: the sum of an array far larger than every cache. One call per thread, each with its part. */
#include <stddef.h>
#include <stdint.h>

#define AHEAD 256 /* numbers that are fetched before they are needed: without it a virtual machine reads 2 to 5 % less */

uint64_t read_all(const uint64_t *numbers, size_t count) {
  uint64_t sums[32] = {0}, total = 0;
  for (size_t i = 0; i + 32 <= count; i += 32) {
    for (size_t j = 0; j < 32; j += 8) __builtin_prefetch(numbers + i + j + AHEAD);
    for (size_t j = 0; j < 32; j++) sums[j] += numbers[i + j];
  }
  for (size_t j = 0; j < 32; j++) total += sums[j];
  return total;
}
