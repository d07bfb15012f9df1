#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/memory.hpp"
#include "engine/peer.hpp"
#include "engine/task.hpp"
#include "links/link.hpp"

namespace hcomm {

class Comm;

/// A send or a receive.
struct Message final : Task {
    bool is_send = false;
    int peer = -1;  ///< -1 (receive): anyone
    int tag = 0;
    std::uint8_t dtype = 0;
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t id = 0;  ///< the sender's number for it
    int source = -1;       ///< receive: the rank it came from
    bool early = false;    ///< send: its body travels with the announcement
    Shown shown;           ///< send: where the receiver finds it, if it lies in shared memory
    std::string text;      ///< why it failed, for Status::MessageMismatch
};

/// In front of everything on a point-to-point link (one cache line).
struct MessageHeader {
    enum Kind : std::uint8_t {
        Eager = 1,    ///< the body follows, and the sender has done with it
        Request = 2,  ///< a body of `bytes` bytes waits at `address`
        Grant = 3,    ///< there is a place for it: send it
        Data = 4,     ///< the body follows
        Done = 5,     ///< the receiver has it
        Refuse = 6,   ///< it does not fit the receiver's tensor
        Early = 7,    ///< the body follows, and the sender waits for an answer
    };
    std::uint64_t magic, id, bytes, address;
    std::int32_t tag;
    std::uint8_t kind, dtype;
    std::uint8_t is_shared, reserved;
    std::uint64_t place;  ///< of a Request that `is_shared`: see `pack_place`
    std::uint64_t unused[2];
};
static_assert(sizeof(MessageHeader) == 64);

/// A number of elements and their type, in words.
std::string size_text(std::uint64_t bytes, std::uint8_t dtype);

/// Point-to-point messages of one communicator: matching by (source, tag) in order of arrival.
///
/// Small messages travel at once (eager) and wait at the receiver. Inside a host those that fit the ring a
/// few times over do the same, but their sender waits for the receiver (early). Larger ones announce
/// themselves, and the receiver fetches them when it is there, piece by piece: out of memory that the sender
/// shares, or by process_vm_readv; where neither works it asks for them, and they travel through the link.
/// All of it is guarded by Comm::mutex_.
class Messenger {
  public:
    explicit Messenger(Comm& comm);
    ~Messenger();

    void send(std::shared_ptr<Message> message);
    /// Sends a message that is small enough to be copied, without a Message; false if it is not, or in vain.
    bool send_now(int dst, int tag, const std::byte* data, std::uint64_t bytes, std::uint8_t dtype);
    void receive(std::shared_ptr<Message> message);

    /// Moves what can be moved. Throws OperationFailed when a peer breaks the protocol.
    void progress();
    /// Something is unfinished, or not yet written to its link.
    bool active() const noexcept { return unfinished_ > 0 || unsent_ > 0; }
    bool unsent() const noexcept { return unsent_ > 0; }
    /// Something can be moved on without anybody else doing anything.
    bool busy() const noexcept { return fetching_ > 0; }
    /// All that is unfinished are sends that wait for an answer from ranks of this host.
    bool awaits_answers_only() const noexcept;

    /// Ends everything unfinished with this status.
    void fail(Status status);
    /// The first unfinished message that is due at `now`, or null.
    std::shared_ptr<Message> overdue(Clock::time_point now) const;
    Clock::time_point next_deadline() const;
    /// Whether something unfinished needs this peer; `nobody_else`: all peers are gone, so that "anyone"
    /// means it too.
    bool needs(int rank, bool nobody_else) const;
    /// What a rank that is waiting for a message waits for, in words; empty if nothing.
    std::string describe() const;
    void collect_fds(std::vector<pollfd>& fds) const;

  private:
    struct Arrived {  ///< a message nobody has asked for yet
        MessageHeader header;
        std::vector<std::byte> body;
        std::shared_ptr<Message> own;  ///< to this rank itself: the send
    };
    struct Frame {
        MessageHeader header;
        const std::byte* body = nullptr;  ///< null: none
        std::uint64_t sent = 0;           ///< of header and body together
        std::vector<std::byte> copy;
        std::shared_ptr<Message> completes;
    };
    struct Fetch {  ///< a receive that takes its message out of the sender's memory
        MessageHeader header;
        std::shared_ptr<Message> message;
        Peer::Reach from;  ///< if the sender shares it
        std::uint64_t got = 0;
    };
    struct Lane {
        Peer* peer = nullptr;
        Link* link = nullptr;
        std::deque<Frame> out;
        std::uint64_t early_bytes = 0;  ///< of messages whose bodies are out, and that wait for an answer
        std::list<Arrived> arrived;
        std::map<std::uint64_t, std::shared_ptr<Message>> granted;  ///< receives whose body is to come
        std::deque<Fetch> fetches;
        // What is being read.
        bool in_body = false;
        MessageHeader header{};
        std::byte* into = nullptr;
        std::uint64_t got = 0;
        std::vector<std::byte> body;
        std::shared_ptr<Message> target;
    };

    bool transmit(Lane& lane, const MessageHeader& header, const std::byte* body, std::uint64_t& sent);
    void flush(Lane& lane);
    void push(Lane& lane, Frame frame);
    void announce(Lane& lane, const std::shared_ptr<Message>& message);
    MessageHeader header_of(const Message& message, MessageHeader::Kind kind) const noexcept;
    void read(Lane& lane);
    bool read_body(Lane& lane);
    void on_header(Lane& lane);
    void on_eager(Lane& lane);
    void on_request(Lane& lane, const MessageHeader& header, std::shared_ptr<Message> message);
    void fetch(Lane& lane);
    void answer(Lane& lane, const MessageHeader& header, MessageHeader::Kind kind);
    void on_grant(Lane& lane, std::uint64_t id);
    void on_answer(Lane& lane);
    std::shared_ptr<Message> take_announced(Lane& lane, std::uint64_t id);
    void end_of_body(Lane& lane);
    void deliver(Lane& lane, Arrived& arrived, Message& message);
    void send_to_self(const std::shared_ptr<Message>& message);
    std::shared_ptr<Message> take_posted(int source, int tag);
    bool fits(const MessageHeader& header, Message& message, int source);
    void finish(Message& message, Status status);
    [[noreturn]] void broken_protocol(const Lane& lane, const char* what);

    Comm& comm_;
    std::vector<Lane> lanes_;  ///< by rank
    std::list<std::shared_ptr<Message>> posted_;
    std::map<std::uint64_t, std::shared_ptr<Message>> announced_;  ///< sends that wait for an answer
    std::uint64_t next_id_ = 1;
    std::uint64_t unfinished_ = 0;
    std::uint64_t unsent_ = 0;  ///< frames in the lanes' queues
    std::uint64_t fetching_ = 0;
    std::uint64_t far_ = 0;  ///< of the announced ones, those to other hosts
};

}  // namespace hcomm
