// A CPU allocator that counts, with a capacity. Loaded through ctypes: extern "C" only, no Python headers.
//
// Every block carries a head that says what was charged for it, so that a block may outlive the meter that counted it.
// "Generation" numbers the runs of an outermost meter: what an earlier run left behind no longer counts.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace {

struct Head {
  int64_t charged;
  int64_t generation;
  uint64_t block;
  uint64_t unused[5];
};
static_assert(sizeof(Head) == 64, "c10 promises 64-byte alignment");

struct Event {
  uint64_t block;
  int64_t bytes;
  int64_t site;
};

struct Refusal {
  int64_t wanted, live, capacity, event;
};

struct Level {
  int64_t base, peak, capacity, first_event, peak_event, first_refusal;
};

using SiteOf = int64_t (*)(int64_t bytes);

enum Scope { kInherit = 0, kHost = 1, kDevice = 2 };
thread_local int scope = kInherit;
// Only the thread that opened a meter is traced: it alone is known to come from Python with nothing locked.
thread_local bool traced = false;

std::mutex& mutex = *new std::mutex();
std::unordered_set<void*>& charged_blocks = *new std::unordered_set<void*>();
std::vector<Event>& events = *new std::vector<Event>();
std::vector<Refusal>& refusals = *new std::vector<Refusal>();
std::vector<Level>& levels = *new std::vector<Level>();
int64_t live = 0, window_peak = 0, event_count = 0, generation = 0, granularity = 512, log_limit = 0, worth_tracing = 0;
uint64_t next_block = 1;
SiteOf site_of = nullptr;
bool forgotten = false;  // a forked worker: what it makes is the host's
c10::Allocator* plain = nullptr;

void log_event(uint64_t block, int64_t bytes) {
  ++event_count;
  if (static_cast<int64_t>(events.size()) < log_limit) events.push_back({block, bytes, 0});
}

void release(void* data) {
  if (!data) return;
  Head* head = static_cast<Head*>(data) - 1;
  if (head->charged) {
    std::lock_guard<std::mutex> lock(mutex);
    if (head->generation == generation && !levels.empty()) {
      live -= head->charged;
      charged_blocks.erase(data);
      log_event(head->block, -head->charged);
    }
  }
  c10::free_cpu(head);
}

// Charges a block, or returns false and says in `refusal` why it does not fit.
bool charge(size_t bytes, Head& head, int64_t& event, bool& trace, Refusal& refusal) {
  std::lock_guard<std::mutex> lock(mutex);
  if (levels.empty()) return true;
  const int64_t want = (static_cast<int64_t>(bytes) + granularity - 1) / granularity * granularity;
  const int64_t now = live + want;
  for (const Level& level : levels) {
    if (level.capacity >= 0 && now - level.base > level.capacity) {
      refusal = {want, live - level.base, level.capacity, event_count};
      refusals.push_back(refusal);
      return false;
    }
  }
  live = now;
  if (now > window_peak) window_peak = now;
  head = {want, generation, next_block++, {}};
  log_event(head.block, want);
  for (Level& level : levels) {
    if (now - level.base > level.peak) {
      level.peak = now - level.base;
      level.peak_event = event_count - level.first_event;
    }
  }
  event = static_cast<int64_t>(events.size()) - 1;
  trace = traced && site_of && event_count == static_cast<int64_t>(events.size()) &&
      (!worth_tracing || want * worth_tracing >= levels.back().peak);
  return true;
}

void forget_charge(const Head& head) {
  if (!head.charged) return;
  std::lock_guard<std::mutex> lock(mutex);
  live -= head.charged;
  log_event(head.block, -head.charged);
}

struct Counting final : c10::Allocator {
  c10::DataPtr make(size_t bytes) const {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    Head head{};
    if (scope != kHost && !forgotten) {
      int64_t event = -1;
      bool trace = false;
      Refusal refusal{};
      if (!charge(bytes, head, event, trace, refusal)) {
        TORCH_CHECK_WITH(
            OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", refusal.wanted,
            " bytes. The emulated device has a total capacity of ", refusal.capacity, " bytes, of which ",
            refusal.capacity - refusal.live, " bytes are free.");
      }
      if (trace) {
        // Outside the lock: this takes the interpreter's lock, whose holder may be waiting for ours.
        const int64_t site = site_of(head.charged);
        std::lock_guard<std::mutex> lock(mutex);
        if (event < static_cast<int64_t>(events.size())) events[event].site = site;
      }
    }
    Head* memory;
    try {
      memory = static_cast<Head*>(c10::alloc_cpu(bytes + sizeof(Head)));
    } catch (...) {
      forget_charge(head);
      throw;
    }
    *memory = head;
    if (head.charged) {
      std::lock_guard<std::mutex> lock(mutex);
      charged_blocks.insert(memory + 1);
    }
    return {memory + 1, memory + 1, &release, cpu};
  }

  // `allocate` lost its const, and `copy_data` came, between torch 2.1 and 2.3; whichever exists is overridden.
  c10::DataPtr allocate(size_t bytes) { return make(bytes); }
  c10::DataPtr allocate(size_t bytes) const { return make(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
};

Counting& counting = *new Counting();

}  // namespace

extern "C" {

void meter_setup(SiteOf trace, int64_t limit) {
  site_of = trace;
  log_limit = limit;
}

// Opens a level and returns its number, counted from 1. Blocks are traced from a share of the peak on, 0 for all blocks.
int64_t meter_open(int64_t capacity, int64_t round_to, int64_t traced_share) {
  std::lock_guard<std::mutex> lock(mutex);
  if (levels.empty()) {
    ++generation;
    live = event_count = 0;
    granularity = round_to;
    worth_tracing = traced_share;
    forgotten = false;
    events.clear();
    refusals.clear();
    charged_blocks.clear();
    plain = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&counting, 255);
  }
  traced = true;
  levels.push_back({live, 0, capacity, event_count, 0, static_cast<int64_t>(refusals.size())});
  return static_cast<int64_t>(levels.size());
}

// Closes the innermost level; with the outermost one, torch has its own allocator back.
void meter_close() {
  std::lock_guard<std::mutex> lock(mutex);
  if (levels.empty()) return;
  levels.pop_back();
  if (levels.empty()) {
    traced = false;
    c10::SetCPUAllocator(plain, 255);
  }
}

// Reads a level: live, peak, events, index of its first event in the log, events up to the peak, events logged in all,
// index of its first refusal, refusals in all.
void meter_read(int64_t number, int64_t* to) {
  std::lock_guard<std::mutex> lock(mutex);
  const Level& level = levels.at(static_cast<size_t>(number - 1));
  to[0] = live - level.base;
  to[1] = level.peak;
  to[2] = event_count - level.first_event;
  to[3] = level.first_event;
  to[4] = level.peak_event;
  to[5] = static_cast<int64_t>(events.size());
  to[6] = level.first_refusal;
  to[7] = static_cast<int64_t>(refusals.size());
}

void meter_copy_events(int64_t first, int64_t count, Event* to) {
  std::lock_guard<std::mutex> lock(mutex);
  if (count > 0) std::memcpy(to, events.data() + first, static_cast<size_t>(count) * sizeof(Event));
}

void meter_copy_refusals(int64_t first, int64_t count, Refusal* to) {
  std::lock_guard<std::mutex> lock(mutex);
  if (count > 0) std::memcpy(to, refusals.data() + first, static_cast<size_t>(count) * sizeof(Refusal));
}

int64_t meter_holds(void* data) {
  std::lock_guard<std::mutex> lock(mutex);
  return static_cast<int64_t>(charged_blocks.count(data));
}

// Starts a window and returns what is live. For a look inside a single operator.
int64_t meter_window() {
  std::lock_guard<std::mutex> lock(mutex);
  window_peak = live;
  return live;
}

// Reads the window: what is live, and the most that was live since it started.
void meter_read_window(int64_t* to) {
  std::lock_guard<std::mutex> lock(mutex);
  to[0] = live;
  to[1] = window_peak;
}

int64_t meter_scope(int64_t wanted) {
  const int64_t before = scope;
  scope = static_cast<int>(wanted);
  return before;
}

void meter_forget() { forgotten = true; }
}
