// The part of CUDA's runtime API that the lessons teach. Each call is told to Python, which does it.
//
// Without a GPU, a program runs in a process of its own: each call is a message on a socket, and
// the process at its other end simulates streams, events, graphs and GPU memory. Page-locked memory
// is shared with it, and closed between calls: the first access to each of its pages is reported,
// so that races of the host are seen.
//
// With GPUSCOPE_INSIDE, a program is compiled with CUDA's own header, for a GPU: it runs in the
// process that records the GPU, and each call is a call of a function there.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#ifdef GPUSCOPE_INSIDE
#include <cuda_runtime.h>
#define cudaStreamCreate gpuscope_cudaStreamCreate
#define cudaStreamCreateWithFlags gpuscope_cudaStreamCreateWithFlags
#define cudaStreamCreateWithPriority gpuscope_cudaStreamCreateWithPriority
#define cudaStreamDestroy gpuscope_cudaStreamDestroy
#define cudaStreamSynchronize gpuscope_cudaStreamSynchronize
#define cudaStreamQuery gpuscope_cudaStreamQuery
#define cudaStreamWaitEvent gpuscope_cudaStreamWaitEvent
#define cudaEventCreate gpuscope_cudaEventCreate
#define cudaEventCreateWithFlags gpuscope_cudaEventCreateWithFlags
#define cudaEventRecord gpuscope_cudaEventRecord
#define cudaEventSynchronize gpuscope_cudaEventSynchronize
#define cudaEventQuery gpuscope_cudaEventQuery
#define cudaEventDestroy gpuscope_cudaEventDestroy
#define cudaEventElapsedTime gpuscope_cudaEventElapsedTime
#define cudaMalloc gpuscope_cudaMalloc
#define cudaFree gpuscope_cudaFree
#define cudaMallocHost gpuscope_cudaMallocHost
#define cudaHostAlloc gpuscope_cudaHostAlloc
#define cudaFreeHost gpuscope_cudaFreeHost
#define cudaMemcpyAsync gpuscope_cudaMemcpyAsync
#define cudaMemcpy gpuscope_cudaMemcpy
#define cudaLaunchHostFunc gpuscope_cudaLaunchHostFunc
#define cudaLaunchKernel gpuscope_cudaLaunchKernel
#define cudaStreamBeginCapture gpuscope_cudaStreamBeginCapture
#define cudaStreamEndCapture gpuscope_cudaStreamEndCapture
#define cudaGraphInstantiate gpuscope_cudaGraphInstantiate
#define cudaGraphLaunch gpuscope_cudaGraphLaunch
#define cudaGraphExecDestroy gpuscope_cudaGraphExecDestroy
#define cudaGraphDestroy gpuscope_cudaGraphDestroy
#define cudaDeviceSynchronize gpuscope_cudaDeviceSynchronize
#define cudaPeekAtLastError gpuscope_cudaPeekAtLastError
#define cudaGetLastError gpuscope_cudaGetLastError
#else
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <ucontext.h>

#define __global__
#define __host__
#define CUDART_CB

#define GPUSCOPE_ERRORS(E) \
  E(Success, 0, "no error") \
  E(ErrorInvalidValue, 1, "invalid argument") \
  E(ErrorMemoryAllocation, 2, "out of memory") \
  E(ErrorInvalidConfiguration, 9, "invalid configuration argument") \
  E(ErrorMissingConfiguration, 52, "__global__ function call is not configured") \
  E(ErrorInvalidDeviceFunction, 98, "invalid device function") \
  E(ErrorInvalidResourceHandle, 400, "invalid resource handle") \
  E(ErrorIllegalState, 401, "the operation cannot be performed in the present state") \
  E(ErrorNotReady, 600, "device not ready") \
  E(ErrorNotPermitted, 800, "operation not permitted") \
  E(ErrorNotSupported, 801, "operation not supported") \
  E(ErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
  E(ErrorStreamCaptureInvalidated, 901, "operation failed due to a previous error during capture") \
  E(ErrorStreamCaptureMerge, 902, "operation would result in a merge of separate capture sequences") \
  E(ErrorStreamCaptureUnmatched, 903, "capture was not ended in the same stream as it began") \
  E(ErrorStreamCaptureUnjoined, 904, "capturing stream has unjoined work") \
  E(ErrorStreamCaptureIsolation, 905, "dependency created on uncaptured work in another stream") \
  E(ErrorStreamCaptureImplicit, 906, "operation would make the legacy stream depend on a capturing blocking stream") \
  E(ErrorCapturedEvent, 907, "operation not permitted on an event last recorded in a capturing stream") \
  E(ErrorUnknown, 999, "unknown error")
#define GPUSCOPE_NUMBER(name, number, text) cuda##name = number,
enum cudaError_t { GPUSCOPE_ERRORS(GPUSCOPE_NUMBER) };
enum cudaMemcpyKind {
  cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed
};
enum : unsigned {
  cudaStreamDefault = 0, cudaStreamNonBlocking = 1,
  cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2,
  cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2,
  cudaHostAllocWriteCombined = 4
};
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void*);
#define cudaStreamLegacy ((cudaStream_t)0x1)
#define cudaStreamPerThread ((cudaStream_t)0x2)
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#endif

namespace gpuscope {
typedef uint64_t Word;
struct Request { char name[40]; Word line, words[6], nbytes; };
struct Reply { Word kind, status, value, nbytes; };  // kind 1: run the function at status
const int most_arguments = 8;
const Word unconfigured = ~(Word)0, unknown = unconfigured - 1;  // instead of the number of a kernel
struct Known { const void* function; int count; int sizes[most_arguments]; };
extern const Known known[];
extern const int known_count;

static thread_local cudaError_t latest;
static thread_local struct {
  bool is_configured;
  Word sizes[7];  // blocks and threads, by dimension; bytes of shared memory
  cudaStream_t stream;
  int line;
} next_launch;

// A line of the program's; none of its arguments is taken for one.
struct Line {
  int number;
  constexpr explicit Line(int number) : number(number) {}
};

// A kernel by its name. It is launched; as a function it can be pointed to, and not called.
template <class F>
struct Kernel {
  F& function;
  constexpr operator F&() const { return function; }
  constexpr F* operator&() const { return &function; }
  constexpr F* operator*() const { return &function; }
  explicit operator void*() const { return (void*)&function; }
  explicit operator const void*() const { return (const void*)&function; }
  template <class... A>
  void operator()(A&&...) const = delete;
};

inline Request request(const char* name, Line line, std::initializer_list<Word> words) {
  Request made = {};
  if (strncmp(name, "gpuscope_", 9) == 0) name += 9;
  strncpy(made.name, name, sizeof made.name - 1);
  made.line = line.number;
  size_t index = 0;
  for (Word word : words) made.words[index++] = word;
  return made;
}

#ifdef GPUSCOPE_INSIDE
struct Stopped {};
static void (*tell)(const Request*, Reply*);
inline bool is_shared(const void*) { return true; }
inline bool is_on_gpu(const void* at) {
  cudaPointerAttributes of = {};
  return cudaPointerGetAttributes(&of, at) == cudaSuccess && of.type == cudaMemoryTypeDevice;
}
inline Reply ask(Request made, const void* payload = nullptr, size_t nbytes = 0, void* = nullptr) {
  Reply reply = {};
  made.words[5] = (Word)payload, made.nbytes = nbytes;
  tell(&made, &reply);
  if (reply.kind) throw Stopped();
  return reply;
}
#else
static const Word arena = 0x208000000000, heading = 1 << 20;
static const Word gpu_memory = 0x210000000000, gpu_bytes = 1ull << 44;  // where arrays of the GPU seem to lie
static Word arena_bytes;
static int channel;
static bool opened;  // whether a page of page-locked memory is open
static pthread_mutex_t busy = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;  // one thread asks at a time
struct Busy {
  Busy() { pthread_mutex_lock(&busy); }
  ~Busy() { pthread_mutex_unlock(&busy); }
};

inline bool is_shared(const void* at) { return (Word)at - arena < arena_bytes; }
inline bool is_on_gpu(const void* at) { return (Word)at - gpu_memory < gpu_bytes; }
inline void write_all(const void* from, size_t left) {
  for (const char* at = (const char*)from; left;) {
    ssize_t sent = send(channel, at, left, MSG_NOSIGNAL);
    if (sent <= 0) _exit(0);
    at += sent, left -= sent;
  }
}
inline void read_all(void* to, size_t left) {
  for (char* at = (char*)to; left;) {
    ssize_t came = read(channel, at, left);
    if (came <= 0) _exit(0);  // the check is over
    at += came, left -= came;
  }
}
inline void close_pages() {
  if (opened) mprotect((void*)(arena + heading), arena_bytes - heading, PROT_NONE);
  opened = false;
}
inline Reply answer();
// Ask for a call: payload goes there, what comes back goes to `back`.
inline Reply ask(Request made, const void* payload = nullptr, size_t nbytes = 0, void* back = nullptr) {
  Busy until_answered;
  volatile char present = nbytes ? ((const char*)payload)[0] ^ ((const char*)payload)[nbytes - 1] : 0;
  (void)present;
  close_pages();
  made.nbytes = nbytes;
  write_all(&made, sizeof made);
  write_all(payload, nbytes);
  Reply reply = answer();
  if (reply.nbytes) read_all(back, reply.nbytes);
  return reply;
}
inline Reply answer() {
  for (;;) {
    Reply reply;
    read_all(&reply, sizeof reply);
    if (reply.kind == 0) return reply;
    close_pages();
    ((cudaHostFn_t)reply.status)((void*)reply.value);
    close_pages();
    Request over = request("over", Line(0), {});
    write_all(&over, sizeof over);
  }
}
inline void fault(int, siginfo_t* info, void* context) {
  Busy until_open;
  Word at = (Word)info->si_addr;
  if (!is_shared((void*)at) || at - arena < heading) {
    Request crashed = request("crashed", Line(0), {at});
    write_all(&crashed, sizeof crashed);
    signal(SIGSEGV, SIG_DFL);
    return;  // and fault again
  }
  Word page = at & ~(Word)4095;
  static Word read_page;
#if defined(__x86_64__)
  bool writes = ((ucontext_t*)context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
  bool writes = opened && read_page == page;
#endif
  read_page = page;
  Request touched = request("touched", Line(0), {page, writes});
  write_all(&touched, sizeof touched);
  answer();
  mprotect((void*)page, 4096, writes ? PROT_READ | PROT_WRITE : PROT_READ);
  opened = true;
}
#endif
inline cudaError_t note(Reply reply) {
  cudaError_t error = (cudaError_t)reply.status;
  if (error != cudaSuccess && error != cudaErrorNotReady) latest = error;
  return error;
}
template <class T>
cudaError_t make(T* made, Request wanted) {
  Reply reply = ask(wanted);
  if (reply.status == 0) *made = (T)reply.value;
  return note(reply);
}
template <class T>
Word word(T value) {
  static_assert(sizeof(T) <= sizeof(Word), "an argument of a kernel has at most 8 bytes here");
  Word bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}
inline void configure(dim3 grid, dim3 block, size_t shared, cudaStream_t stream, Line line) {
  next_launch = {true, {grid.x, grid.y, grid.z, block.x, block.y, block.z, shared}, stream, line.number};
}
inline cudaError_t launch(Word number, const Word* words, int count) {
  Request made = request("launch", Line(next_launch.line),
                         {(Word)next_launch.stream, next_launch.is_configured ? number : unconfigured});
  Word payload[7 + most_arguments];
  memcpy(payload, next_launch.sizes, sizeof next_launch.sizes);
  memcpy(payload + 7, words, count * sizeof(Word));
  next_launch = {};
  return note(ask(made, payload, (7 + count) * sizeof(Word)));
}
template <class... A>
void launched(int number, A... values) {
  static_assert(sizeof...(A) <= most_arguments, "a kernel has at most 8 arguments here");
  Word words[] = {0, word(values)...};
  launch(number, words + 1, sizeof...(A));
}

// A function that a pointer leads to, between a launch's brackets: a kernel, or nothing to launch.
template <class... A>
struct Pointed {
  void (*function)(A...);
  void operator()(A... values) const {
    for (int number = 0; number < known_count; ++number)
      if (known[number].function == (const void*)function) return function(values...);
    launch(unknown, nullptr, 0);
  }
};
// What stands between <<< and >>>; it is applied to what stands before them.
struct Configured {
  template <class F>
  F* operator()(const Kernel<F>& kernel) const { return &kernel; }
  template <class... A>
  Pointed<A...> operator()(void (*function)(A...)) const { return {function}; }
};
struct Configuring {
  Line line;
  Configured operator()(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr) const {
    configure(grid, block, shared, stream, line);
    return {};
  }
};
inline Configuring configuring(Line line = Line(__builtin_LINE())) { return {line}; }

// Start no processes from here on, in this thread and those that it starts: they could outlive it.
inline void stay_alone() {
#if defined(__x86_64__) || defined(__aarch64__)
#ifdef __x86_64__
  const unsigned ours = AUDIT_ARCH_X86_64;
#else
  const unsigned ours = AUDIT_ARCH_AARCH64;
#endif
#define GPUSCOPE_IF(call, then) \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, then)
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ours, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
#ifdef SYS_fork
      GPUSCOPE_IF(SYS_fork, SECCOMP_RET_ERRNO | EPERM),
      GPUSCOPE_IF(SYS_vfork, SECCOMP_RET_ERRNO | EPERM),
#endif
      GPUSCOPE_IF(SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS),  // whose flags are in memory: clone is tried
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
#undef GPUSCOPE_IF
  sock_fprog program = {sizeof filter / sizeof *filter, filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
#endif
}
}  // namespace gpuscope

#define GPUSCOPE_LINE gpuscope::Line line = gpuscope::Line(__builtin_LINE())
#define GPUSCOPE_ASK(...) gpuscope::note(gpuscope::ask(gpuscope::request(__func__, line, {__VA_ARGS__})))
#define GPUSCOPE_MAKE(made, ...) gpuscope::make(made, gpuscope::request(__func__, line, {__VA_ARGS__}))
using GpuscopeWord = gpuscope::Word;

inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority, GPUSCOPE_LINE) {
  return GPUSCOPE_MAKE(stream, flags, (GpuscopeWord)(int64_t)priority);
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags, GPUSCOPE_LINE) {
  return cudaStreamCreateWithPriority(stream, flags, 0, line);
}
inline cudaError_t cudaStreamCreate(cudaStream_t* stream, GPUSCOPE_LINE) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0, line);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)stream); }
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)stream); }
inline cudaError_t cudaStreamQuery(cudaStream_t stream, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)stream); }
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0, GPUSCOPE_LINE) {
  return GPUSCOPE_ASK((GpuscopeWord)stream, (GpuscopeWord)event, flags);
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags, GPUSCOPE_LINE) {
  return GPUSCOPE_MAKE(event, flags);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event, GPUSCOPE_LINE) {
  return cudaEventCreateWithFlags(event, cudaEventDefault, line);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags, GPUSCOPE_LINE) {
  return cudaEventCreateWithFlags(event, flags, line);
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = nullptr, GPUSCOPE_LINE) {
  return GPUSCOPE_ASK((GpuscopeWord)event, (GpuscopeWord)stream);
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)event); }
inline cudaError_t cudaEventQuery(cudaEvent_t event, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)event); }
inline cudaError_t cudaEventDestroy(cudaEvent_t event, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)event); }
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end, GPUSCOPE_LINE) {
  gpuscope::Word ns = 0;
  cudaError_t error = GPUSCOPE_MAKE(&ns, (GpuscopeWord)begin, (GpuscopeWord)end);
  if (error == cudaSuccess) *ms = (float)((double)(int64_t)ns / 1e6);
  return error;
}
template <class T>
cudaError_t cudaMalloc(T** memory, size_t bytes, GPUSCOPE_LINE) { return GPUSCOPE_MAKE(memory, bytes); }
inline cudaError_t cudaFree(void* memory, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)memory); }
template <class T>
cudaError_t cudaHostAlloc(T** memory, size_t bytes, unsigned flags, GPUSCOPE_LINE) {
  return GPUSCOPE_MAKE(memory, bytes, flags);
}
template <class T>
cudaError_t cudaMallocHost(T** memory, size_t bytes, unsigned flags = cudaHostAllocDefault, GPUSCOPE_LINE) {
  return GPUSCOPE_MAKE(memory, bytes, flags);
}
inline cudaError_t cudaFreeHost(void* memory, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)memory); }

namespace gpuscope {
inline cudaError_t copy(const char* name, void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                        cudaStream_t stream, Line line) {
  if (kind == cudaMemcpyDefault) kind = (cudaMemcpyKind)(2 * is_on_gpu(from) + is_on_gpu(to));
  bool up = kind == cudaMemcpyHostToDevice && !is_shared(from);
  bool down = kind == cudaMemcpyDeviceToHost && !is_shared(to);
  Request made = request(name, line, {up ? 0 : (Word)from, down ? 0 : (Word)to, bytes, (Word)kind, (Word)stream});
  return note(ask(made, from, up ? bytes : 0, to));
}
}  // namespace gpuscope
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream = nullptr, GPUSCOPE_LINE) {
  return gpuscope::copy(__func__, to, from, bytes, kind, stream, line);
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, GPUSCOPE_LINE) {
  return gpuscope::copy(__func__, to, from, bytes, kind, nullptr, line);
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data, GPUSCOPE_LINE) {
  return GPUSCOPE_ASK((GpuscopeWord)stream, (GpuscopeWord)function, (GpuscopeWord)data);
}
inline cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                    size_t shared = 0, cudaStream_t stream = nullptr, GPUSCOPE_LINE) {
  gpuscope::configure(grid, block, shared, stream, line);
  for (int number = 0; number < gpuscope::known_count; ++number) {
    const gpuscope::Known& kernel = gpuscope::known[number];
    if (kernel.function != function) continue;
    gpuscope::Word words[gpuscope::most_arguments] = {};
    for (int i = 0; i < kernel.count; ++i) memcpy(&words[i], arguments[i], kernel.sizes[i]);
    return gpuscope::launch(number, words, kernel.count);
  }
  return gpuscope::launch(gpuscope::unknown, nullptr, 0);
}
template <class F>
cudaError_t cudaLaunchKernel(F* function, dim3 grid, dim3 block, void** arguments, size_t shared = 0,
                             cudaStream_t stream = nullptr, GPUSCOPE_LINE) {
  return cudaLaunchKernel((const void*)function, grid, block, arguments, shared, stream, line);
}
template <class F>
cudaError_t cudaLaunchKernel(const gpuscope::Kernel<F>& kernel, dim3 grid, dim3 block, void** arguments,
                             size_t shared = 0, cudaStream_t stream = nullptr, GPUSCOPE_LINE) {
  return cudaLaunchKernel((const void*)kernel, grid, block, arguments, shared, stream, line);
}
inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode, GPUSCOPE_LINE) {
  return GPUSCOPE_ASK((GpuscopeWord)stream, (GpuscopeWord)mode);
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph, GPUSCOPE_LINE) {
  return GPUSCOPE_MAKE(graph, (GpuscopeWord)stream);
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags = 0, GPUSCOPE_LINE) {
  return GPUSCOPE_MAKE(executable, (GpuscopeWord)graph, flags);
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream, GPUSCOPE_LINE) {
  return GPUSCOPE_ASK((GpuscopeWord)executable, (GpuscopeWord)stream);
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)executable); }
inline cudaError_t cudaGraphDestroy(cudaGraph_t graph, GPUSCOPE_LINE) { return GPUSCOPE_ASK((GpuscopeWord)graph); }
inline cudaError_t cudaDeviceSynchronize(GPUSCOPE_LINE) { return GPUSCOPE_ASK(0); }
#ifndef GPUSCOPE_INSIDE
#define GPUSCOPE_NAME(name, number, text) case number: return "cuda" #name;
inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) { GPUSCOPE_ERRORS(GPUSCOPE_NAME) }
  return "unrecognized error code";
}
#define GPUSCOPE_TEXT(name, number, text) case number: return text;
inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) { GPUSCOPE_ERRORS(GPUSCOPE_TEXT) }
  return "unrecognized error code";
}
#endif
inline cudaError_t cudaPeekAtLastError() { return gpuscope::latest; }
inline cudaError_t cudaGetLastError(GPUSCOPE_LINE) {
  GPUSCOPE_ASK(0);
  cudaError_t error = gpuscope::latest;
  gpuscope::latest = cudaSuccess;
  return error;
}

namespace gpuscope {
template <class T>
T value_of(Word bits) {
  T value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class R, class... A, size_t... I>
Word call(R (*function)(A...), const Word* words, std::index_sequence<I...>) {
  if constexpr (std::is_void_v<R>) {
    function(value_of<A>(words[I])...);
    return 0;
  } else {
    return word(function(value_of<A>(words[I])...));
  }
}
#ifdef GPUSCOPE_INSIDE
// Run a program; returns whether it came to its end.
template <class R, class... A>
int run(R (*function)(A...), const Word* words, Word* value, void (*telling)(const Request*, Reply*)) {
  tell = telling;
  stay_alone();
  try {
    *value = call(function, words, std::index_sequence_for<A...>());
  } catch (Stopped) {
    return 0;
  }
  fflush(stdout);
  return 1;
}
#else
// Run a program with the arguments that stand at the begin of the shared memory.
template <class R, class... A>
int run(R (*function)(A...), char** argv) {
  channel = atoi(argv[1]);
  int memory = atoi(argv[2]);
  arena_bytes = strtoull(argv[3], nullptr, 10);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto limit = [](int what, rlim_t most) {
    rlimit both = {most, most};
    setrlimit((__rlimit_resource)what, &both);
  };
  limit(RLIMIT_CORE, 0), limit(RLIMIT_FSIZE, 1 << 20), limit(RLIMIT_CPU, 60);
  limit(RLIMIT_AS, arena_bytes + ((rlim_t)2 << 30));
  int fixed = MAP_SHARED | MAP_FIXED_NOREPLACE;
  void* at = mmap((void*)arena, arena_bytes, PROT_READ | PROT_WRITE, fixed, memory, 0);
  if (at != (void*)arena) return 4;
  stay_alone();
  opened = true;
  close_pages();
  struct sigaction action = {};
  action.sa_sigaction = fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
  Word value = call(function, (const Word*)arena, std::index_sequence_for<A...>());
  fflush(stdout);
  Busy until_the_end;
  Request over = request("returned", Line(0), {value});
  close_pages();
  write_all(&over, sizeof over);
  answer();  // host functions, until the check is over
  return 0;
}
#endif
}  // namespace gpuscope
