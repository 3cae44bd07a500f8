/* What a journal must know of the records in a buffer of CUPTI's before the program ends: which
 * texts and GPUs they name. layout.py does the same in NumPy; this takes no lock of Python's from
 * the threads that launch. It needs no symbol of Python. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

PUBLIC const uint32_t source_crc = SOURCE_CRC;

typedef struct {
    uint32_t nbytes;   /* of a record; 0: unknown */
    uint32_t texts[2]; /* where it has the address of a text; 0: nowhere */
    uint32_t device;   /* where it has the number of a GPU; 0: nowhere */
} Fields;

/* Add a number to a set, if it is new. `slots` is a power of two; 0 is in no set. */
static int
is_new(uint64_t *set, uint64_t slots, uint64_t number)
{
    uint64_t slot = (number * 0x9E3779B97F4A7C15u >> 32) & (slots - 1);
    for (; set[slot] != 0; slot = (slot + 1) & (slots - 1))
        if (set[slot] == number)
            return 0;
    set[slot] = number;
    return 1;
}

/* Write the addresses of texts, each once, and set the bit of each GPU below 64.
 *
 * Returns how many addresses there are; -1 where there are more than `room`, a power of two. */
PUBLIC int64_t
find_texts(const uint8_t *records, uint64_t nbytes, const Fields *fields, uint32_t kinds,
           uint64_t *addresses, uint64_t room, uint64_t *devices)
{
    int64_t count = 0;
    uint64_t *set = calloc(2 * room, sizeof(uint64_t));
    if (set == NULL)
        return -1;
    while (nbytes >= sizeof(uint32_t)) {
        uint32_t kind, device;
        uint64_t address;
        memcpy(&kind, records, sizeof(kind));
        if (kind >= kinds || fields[kind].nbytes == 0 || fields[kind].nbytes > nbytes)
            break;
        const Fields *of = &fields[kind];
        for (int which = 0; which < 2; which++) {
            if (of->texts[which] == 0)
                continue;
            memcpy(&address, records + of->texts[which], sizeof(address));
            if (address == 0 || !is_new(set, 2 * room, address))
                continue;
            if ((uint64_t)count == room) {
                free(set);
                return -1;
            }
            addresses[count++] = address;
        }
        if (of->device != 0) {
            memcpy(&device, records + of->device, sizeof(device));
            if (device < 64)
                *devices |= (uint64_t)1 << device;
        }
        records += of->nbytes;
        nbytes -= of->nbytes;
    }
    free(set);
    return count;
}
