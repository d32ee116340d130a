// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <httplib.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// cpp-httplib behind limits. The library itself waits for each read alone, takes lines of any
// length and connections of any number; here a connection has so much time and so many bytes for a
// request, and there are so many connections. Its parser, routes and answers are used as they are.

namespace lariat::examples {

struct HttpLimits {
  int max_connections = 64;         // beyond: 503; each has a thread
  std::size_t max_head = 16 << 10;  // bytes of a request's line and headers: beyond, 431
  std::size_t max_body = 1 << 20;   // bytes of a request's body: beyond, 413
  // For a whole request to arrive (408), for an answer to be taken, for the next request to begin.
  std::chrono::milliseconds timeout{10000};
};

// One accepted socket, as cpp-httplib reads and writes it.
class HttpConnection final : public httplib::Stream {
 public:
  HttpConnection(int fd, const HttpLimits& limits) : fd_(fd), limits_(limits) {}

  // Waits for the first byte of a request. False: none came in time, or `stop_event` is readable.
  bool WaitForRequest(int stop_event);
  void AllowBody();  // from here on the head's limit does not hold
  // Whether the client has closed its side: it is taken to be gone.
  bool PeerClosed() const;
  bool timed_out() const { return timed_out_; }  // of the present request
  bool too_large() const { return too_large_; }
  bool answered() const { return answered_; }
  bool closing() const { return closing_; }
  void CloseAfterAnswer() { closing_ = true; }

  // --- httplib::Stream, of all its versions ---
  using httplib::Stream::write;
  ssize_t read(char* data, size_t size) override;
  ssize_t write(const char* data, size_t size) override;
  bool is_readable() const override { return begin_ < end_ || Poll(POLLIN, 0); }
  bool is_writable() const { return Poll(POLLOUT, 0); }
  bool wait_readable() const { return is_readable(); }
  bool wait_writable() const { return is_writable(); }
  time_t duration() const { return 0; }
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return fd_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool Poll(short events, int milliseconds) const;

  const int fd_;
  const HttpLimits& limits_;
  char buffer_[4096];
  std::size_t begin_ = 0, end_ = 0;        // what is read and not taken
  Clock::time_point deadline_;             // of reading
  std::size_t budget_ = 0;                 // bytes that may still be taken
  std::chrono::milliseconds patience_{0};  // for the client to take the answer
  bool timed_out_ = false, too_large_ = false, answered_ = false, closing_ = false;
};

// Closes sockets with what clients still send unread: a plain close would reset the connection, and
// the client might lose the answer. Keeps each for a second at most.
class LingeringCloser {
 public:
  LingeringCloser();
  ~LingeringCloser();  // closes all
  void Close(int fd);

 private:
  void Run();

  int wake_[2] = {-1, -1};  // a pipe: new sockets come through it; closed at the end
  std::thread thread_;
};

class HttpServer : public httplib::Server {
 public:
  explicit HttpServer(const HttpLimits& limits);
  ~HttpServer() override;

  // port 0: a free one. Returns the port, or -1 (errno).
  int Bind(const std::string& host, int port);
  // Serves until Stop; then ends when the requests under way are answered. False: could not go on.
  bool Serve();
  void Stop();  // from any thread

  const HttpLimits& limits() const { return limits_; }
  int connections() const { return connections_; }
  std::int64_t refused_connections() const { return refused_; }

  // The connection whose handler runs on this thread.
  static HttpConnection& Current();
  // Sets a status and one line of text for it, and has the connection closed after the answer.
  static void Error(httplib::Response& response, int status, const std::string& message);

 private:
  class Tasks;
  bool process_and_close_socket(socket_t fd) override;  // on the thread that accepts
  void Work();
  void ServeConnection(int fd);
  bool ProcessRequest(HttpConnection& connection, bool& closed);

  const HttpLimits limits_;
  LingeringCloser closer_;
  int stop_event_[2] = {-1, -1};  // a pipe, closed to wake all connections that wait
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ended_ = false;  // nobody listens any more
  int capacity_ = 0;  // connections that there are threads for; set before the first is accepted
  std::atomic<int> connections_ = 0;
  std::atomic<std::int64_t> refused_ = 0;
  std::mutex mutex_;
  std::condition_variable accepted_;
  std::deque<int> sockets_;
  bool done_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace lariat::examples
