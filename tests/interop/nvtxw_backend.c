/* A backend for NVTX's writer that logs what it gets, as lines of JSON, into the file that the
   session's name and the suffix .nsys-rep make: as nsys's own does, but readable. */
#include <nvtxw3/nvtxw3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct schema { uint64_t flags; nvtxPayloadSchemaEntry_t entries[16]; size_t count; };
static struct schema schemas[1024];
static uint64_t schema_count = 1, ids = 1;
static FILE *out;

static void text(const char *s)
{
    fputc('"', out);
    for (; s && *s; ++s) {
        if (*s == '"' || *s == '\\') fprintf(out, "\\%c", *s);
        else if ((unsigned char)*s < 32) fprintf(out, "\\u%04x", *s);
        else fputc(*s, out);
    }
    fputc('"', out);
}

static nvtxwResultCode_t session_begin(const nvtxwSessionAttributes_t *a, nvtxwSessionHandle_t *h)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.nsys-rep", a->name);
    out = fopen(path, "w");
    if (!out) return NVTXW_RESULT_FAILED;
    fprintf(out, "{\"call\": \"session\", \"config\": ");
    text(a->configString);
    fprintf(out, "}\n");
    *h = (nvtxwSessionHandle_t)1;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t session_end(nvtxwSessionHandle_t h)
{
    (void)h;
    fprintf(out, "{\"call\": \"end\"}\n");
    return fclose(out) ? NVTXW_RESULT_FAILED : NVTXW_RESULT_SUCCESS;
}

static uint64_t named(const char *call, uintptr_t owner, const char *name)
{
    fprintf(out, "{\"call\": \"%s\", \"id\": %llu, \"of\": %llu, \"name\": ", call,
            (unsigned long long)ids, (unsigned long long)owner);
    text(name);
    fprintf(out, "}\n");
    return ids++;
}

static nvtxwResultCode_t domain(nvtxwSessionHandle_t h, const nvtxwDomainAttributes_t *a,
                                nvtxDomainHandle_t *o)
{
    (void)h;
    *o = (nvtxDomainHandle_t)(uintptr_t)named("domain", 0, a ? a->name : "");
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t category(nvtxDomainHandle_t d, uint32_t number, const char *name)
{
    fprintf(out, "{\"call\": \"category\", \"id\": %u, \"of\": %llu, \"name\": ", number,
            (unsigned long long)(uintptr_t)d);
    text(name);
    fprintf(out, "}\n");
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t string(nvtxDomainHandle_t d, const char *s, nvtxStringHandle_t *o)
{
    *o = (nvtxStringHandle_t)(uintptr_t)named("string", (uintptr_t)d, s);
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t scope(nvtxDomainHandle_t d, const nvtxScopeAttr_t *a, uint64_t *o)
{
    *o = named("scope", (uintptr_t)d, a->path);
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t schema(nvtxDomainHandle_t d, const nvtxPayloadSchemaAttr_t *a, uint64_t *o)
{
    (void)d;
    if (schema_count >= 1024 || a->numEntries > 16) return NVTXW_RESULT_FAILED;
    struct schema *s = &schemas[schema_count];
    s->flags = a->flags;
    s->count = a->numEntries;
    memcpy(s->entries, a->entries, a->numEntries * sizeof *a->entries);
    *o = schema_count++;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t counter(nvtxDomainHandle_t d, const nvtxCounterAttr_t *a, uint64_t *o)
{
    *o = named("counter", (uintptr_t)d, a->name);
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t stream_open(nvtxwSessionHandle_t h, const nvtxwStreamAttributes_t *a,
                                     nvtxwStreamHandle_t *o)
{
    (void)h;
    uint64_t id = named("stream", (uintptr_t)a->domain, a->name);
    fprintf(out, "{\"call\": \"place\", \"id\": %llu, \"scope\": %llu}\n", (unsigned long long)id,
            (unsigned long long)a->scopeId);
    *o = (nvtxwStreamHandle_t)(uintptr_t)id;
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t stream_close(nvtxwStreamHandle_t s)
{
    (void)s;
    return NVTXW_RESULT_SUCCESS;
}

static const char *kind_of(uint64_t flags)
{
    switch (flags) {
    case NVTX_PAYLOAD_SCHEMA_FLAG_MARK: return "mark";
    case NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_PUSHPOP: return "push/pop";
    case NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_STARTEND: return "start/end";
    case NVTX_PAYLOAD_SCHEMA_FLAG_RANGE_START: return "start";
    default: return "other";
    }
}

static nvtxwResultCode_t event(nvtxwStreamHandle_t s, const nvtxPayloadData_t *p, size_t count)
{
    const struct schema *layout = &schemas[p->schemaId];
    (void)count;
    fprintf(out, "{\"call\": \"event\", \"stream\": %llu, \"kind\": \"%s\"",
            (unsigned long long)(uintptr_t)s, kind_of(layout->flags));
    for (size_t i = 0; i < layout->count; ++i) {
        const nvtxPayloadSchemaEntry_t *e = &layout->entries[i];
        uint64_t value = 0;
        size_t size = e->type == NVTX_PAYLOAD_ENTRY_TYPE_COLOR_ARGB ||
                      e->type == NVTX_PAYLOAD_ENTRY_TYPE_CATEGORY ? 4 : 8;
        memcpy(&value, (const char *)p->payload + e->offset, size);
        fprintf(out, ", \"%s\": %lld", e->name, (long long)value);
    }
    fprintf(out, "}\n");
    return NVTXW_RESULT_SUCCESS;
}

static nvtxwResultCode_t sample(nvtxwStreamHandle_t s, int64_t time, uint64_t id, const void *data,
                                size_t size)
{
    double value = 0;
    if (size != sizeof value) return NVTXW_RESULT_INVALID_ARGUMENT;
    memcpy(&value, data, size);
    fprintf(out, "{\"call\": \"sample\", \"stream\": %llu, \"timestamp\": %lld, "
            "\"counter\": %llu, \"value\": %.17g}\n",
            (unsigned long long)(uintptr_t)s, (long long)time, (unsigned long long)id, value);
    return NVTXW_RESULT_SUCCESS;
}

nvtxwResultCode_t nvtxwGetInterface(nvtxwInterfaceVersion_t version, const void **interface)
{
    static nvtxwInterface_t table;
    if (version > NVTXW_INTERFACE_VERSION) return NVTXW_RESULT_INTERFACE_VERSION_NOT_SUPPORTED;
    table.SessionBegin = session_begin;
    table.SessionEnd = session_end;
    table.DomainRegister = domain;
    table.CategoryRegister = category;
    table.StringRegister = string;
    table.ScopeRegister = scope;
    table.SchemaRegister = schema;
    table.CounterRegister = counter;
    table.StreamOpen = stream_open;
    table.StreamClose = stream_close;
    table.EventWrite = event;
    table.CounterWrite = sample;
    *interface = &table;
    return NVTXW_RESULT_SUCCESS;
}
