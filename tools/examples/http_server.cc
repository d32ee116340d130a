// SPDX-License-Identifier: Apache-2.0
#include "http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <type_traits>

namespace lariat::examples {

namespace {

using std::chrono::milliseconds;

thread_local HttpConnection* current = nullptr;

std::string ErrorBody(const std::string& message) {
  const nlohmann::json body = {{"error", message}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

// An answer where cpp-httplib gives none.
std::string RawAnswer(const char* status, const std::string& message) {
  const std::string body = ErrorBody(message);
  return std::string("HTTP/1.1 ")
      .append(status)
      .append("\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: ")
      .append(std::to_string(body.size()))
      .append("\r\n\r\n")
      .append(body);
}

void Address(int (*name)(int, sockaddr*, socklen_t*), int fd, std::string& ip, int& port) {
  sockaddr_storage storage{};
  socklen_t size = sizeof storage;
  if (name(fd, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return;
  char text[INET6_ADDRSTRLEN] = {};
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    port = ntohs(v4.sin_port);
  } else if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    port = ntohs(v6.sin6_port);
  }
  ip = text;
}

}  // namespace

// --- A connection -----------------------------------------------------------------------------

bool HttpConnection::Poll(short events, int wait) const {
  pollfd poll_fd = {fd_, events, 0};
  return ::poll(&poll_fd, 1, wait) > 0;
}

bool HttpConnection::WaitForRequest(int stop_event) {
  timed_out_ = too_large_ = answered_ = false;
  patience_ = limits_.timeout;
  budget_ = limits_.max_head;
  if (begin_ == end_) {
    pollfd poll_fds[] = {{fd_, POLLIN, 0}, {stop_event, POLLIN, 0}};
    int ready = 0;
    do {
      ready = ::poll(poll_fds, 2, static_cast<int>(limits_.timeout.count()));
    } while (ready < 0 && errno == EINTR);
    // What has arrived is served, also when the server stops.
    if (ready <= 0 || poll_fds[0].revents == 0) return false;
  }
  deadline_ = Clock::now() + limits_.timeout;
  return true;
}

void HttpConnection::AllowBody() {
  // The body itself is counted by who reads it; this leaves room for its framing in chunks, which
  // may be as small as one byte.
  budget_ = std::max<std::size_t>(limits_.max_body, 4096) * 8;
}

bool HttpConnection::PeerClosed() const {
  char byte = 0;
  const ssize_t n = ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

ssize_t HttpConnection::read(char* data, size_t size) {
  if (budget_ == 0) {
    too_large_ = true;
    return -1;
  }
  while (begin_ == end_) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now());
    if (left.count() <= 0) {
      timed_out_ = true;
      return -1;
    }
    if (!Poll(POLLIN, static_cast<int>(left.count()) + 1)) continue;
    const ssize_t n = ::recv(fd_, buffer_, sizeof buffer_, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
    if (n <= 0) return n;
    begin_ = 0;
    end_ = static_cast<std::size_t>(n);
  }
  const std::size_t n = std::min({size, end_ - begin_, budget_});
  std::copy_n(buffer_ + begin_, n, data);
  begin_ += n;
  budget_ -= n;
  return static_cast<ssize_t>(n);
}

ssize_t HttpConnection::write(const char* data, size_t size) {
  answered_ = true;
  // The library may go on behind a write that failed: then nothing is waited for any more.
  while (patience_.count() > 0) {
    const ssize_t n = ::send(fd_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return n;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) break;
    // All waits for the client together, so that one who takes a byte now and then ends as well.
    const auto begin = Clock::now();
    Poll(POLLOUT, static_cast<int>(patience_.count()));
    patience_ -= std::chrono::duration_cast<milliseconds>(Clock::now() - begin) + milliseconds(1);
  }
  patience_ = milliseconds(0);
  return -1;
}

void HttpConnection::get_remote_ip_and_port(std::string& ip, int& port) const {
  Address(::getpeername, fd_, ip, port);
}
void HttpConnection::get_local_ip_and_port(std::string& ip, int& port) const {
  Address(::getsockname, fd_, ip, port);
}

// --- Closing ----------------------------------------------------------------------------------

LingeringCloser::LingeringCloser() {
  if (::pipe2(wake_, O_CLOEXEC) == 0) thread_ = std::thread([this] { Run(); });
}

LingeringCloser::~LingeringCloser() {
  if (!thread_.joinable()) return;
  ::close(wake_[1]);
  thread_.join();
  ::close(wake_[0]);
}

void LingeringCloser::Close(int fd) {
  ::shutdown(fd, SHUT_WR);
  if (!thread_.joinable() || ::write(wake_[1], &fd, sizeof fd) != sizeof fd) ::close(fd);
}

void LingeringCloser::Run() {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kMost = 256;
  std::vector<pollfd> sockets = {{wake_[0], POLLIN, 0}};
  std::vector<Clock::time_point> ends(1);
  const auto drop = [&](std::size_t i) {
    ::close(sockets[i].fd);
    sockets.erase(sockets.begin() + static_cast<std::ptrdiff_t>(i));
    ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(i));
  };
  for (bool open = true; open;) {
    ::poll(sockets.data(), sockets.size(), sockets.size() > 1 ? 100 : -1);
    const auto now = Clock::now();
    char scratch[4096];
    for (std::size_t i = sockets.size(); i-- > 1;) {
      const ssize_t n = sockets[i].revents == 0
                            ? 1
                            : ::recv(sockets[i].fd, scratch, sizeof scratch, MSG_DONTWAIT);
      if (n <= 0 || now >= ends[i]) drop(i);
    }
    if (sockets[0].revents == 0) continue;
    int fd = -1;
    open = ::read(wake_[0], &fd, sizeof fd) == sizeof fd;
    if (!open) break;
    if (sockets.size() > kMost) drop(1);  // the one that has waited longest
    sockets.push_back({fd, POLLIN, 0});
    ends.push_back(now + std::chrono::seconds(1));
  }
  while (sockets.size() > 1) drop(1);
}

// --- The server -------------------------------------------------------------------------------

// cpp-httplib hands each accepted socket to a task queue. This one runs the task at once: it comes
// back to process_and_close_socket below.
class HttpServer::Tasks final : public httplib::TaskQueue {
  using Answer =
      decltype(std::declval<httplib::TaskQueue&>().enqueue(nullptr));  // void, later bool

 public:
  Answer enqueue(std::function<void()> task) override {
    task();
    return static_cast<Answer>(true);
  }
  void shutdown() override {}
};

HttpServer::HttpServer(const HttpLimits& limits) : limits_(limits) {
  if (::pipe2(stop_event_, O_CLOEXEC) != 0) stop_event_[0] = stop_event_[1] = -1;
  new_task_queue = [] { return new Tasks; };
  set_payload_max_length(limits.max_body);
  // Not the library's SO_REUSEPORT: by that a second server would take half of the connections.
  set_socket_options([](socket_t fd) {
    const int yes = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  // Answers that the library makes by itself.
  set_error_handler(httplib::Server::Handler([](const httplib::Request&, httplib::Response& res) {
    if (!res.body.empty()) return;
    if (Current().timed_out()) {
      Error(res, 408, "the request did not arrive in time");
    } else if (Current().too_large()) {
      Error(res, 431, "the request line and headers are too long");
    } else if (res.status == 400) {
      Error(res, 400, "not a valid HTTP request");
    } else {
      Error(res, res.status, "the request is not served");
    }
  }));
  set_exception_handler([](const httplib::Request&, httplib::Response& res, std::exception_ptr) {
    Error(res, 500, "out of memory, or a bug of the server");
  });
  set_post_routing_handler([](const httplib::Request&, httplib::Response& res) {
    res.headers.erase("Keep-Alive");
    if (res.status >= 400) Current().CloseAfterAnswer();  // a body may be unread
    if (!Current().closing()) return;
    res.headers.erase("Connection");
    res.set_header("Connection", "close");
  });
}

HttpServer::~HttpServer() {
  for (const int fd : stop_event_) {
    if (fd >= 0) ::close(fd);
  }
}

int HttpServer::Bind(const std::string& host, int port) {
  errno = 0;
  if (port == 0) {
    port = bind_to_any_port(host);
  } else if (!bind_to_port(host, port)) {
    port = -1;
  }
  // The library asks for a backlog of five.
  if (port > 0) ::listen(svr_sock_, SOMAXCONN);
  return port;
}

bool HttpServer::Serve() {
  try {
    while (std::ssize(workers_) < limits_.max_connections) {
      workers_.emplace_back([this] { Work(); });
    }
  } catch (const std::system_error&) {  // so many threads may not be; fewer serve as well
  }
  capacity_ = static_cast<int>(workers_.size());
  const bool served = capacity_ > 0 && listen_after_bind();
  ended_ = true;
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  accepted_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  return served;
}

void HttpServer::Stop() {
  if (stopping_.exchange(true)) return;
  ::close(std::exchange(stop_event_[1], -1));  // the other end becomes readable
  while (!is_running() && !ended_) std::this_thread::sleep_for(milliseconds(1));
  if (!ended_) stop();
}

HttpConnection& HttpServer::Current() { return *current; }

void HttpServer::Error(httplib::Response& response, int status, const std::string& message) {
  response.status = status;
  response.set_content(ErrorBody(message), "application/json");
}

bool HttpServer::process_and_close_socket(socket_t fd) {
  if (connections_ >= capacity_ || stopping_) {
    ++refused_;
    const std::string answer =
        RawAnswer("503 Service Unavailable",
                  stopping_ ? "the server stops" : "all connections are taken, try again later");
    // It fits into an empty buffer.
    (void)!::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    closer_.Close(fd);
    return false;
  }
  ++connections_;
  {
    const std::lock_guard lock(mutex_);
    sockets_.push_back(fd);
  }
  accepted_.notify_one();
  return true;
}

void HttpServer::Work() {
  for (;;) {
    int fd = -1;
    {
      std::unique_lock lock(mutex_);
      accepted_.wait(lock, [&] { return done_ || !sockets_.empty(); });
      if (sockets_.empty()) return;
      fd = sockets_.front();
      sockets_.pop_front();
    }
    try {
      ServeConnection(fd);
    } catch (...) {  // no memory for a request's headers: the connection ends
      current = nullptr;
    }
    closer_.Close(fd);
    --connections_;
  }
}

void HttpServer::ServeConnection(int fd) {
  const int yes = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  HttpConnection connection(fd, limits_);
  current = &connection;
  while (!connection.closing() && connection.WaitForRequest(stop_event_[0])) {
    bool closed = false;
    const bool done = ProcessRequest(connection, closed);
    if (!done && !connection.answered()) {  // there was no whole request line
      std::string answer;
      if (connection.timed_out()) {
        answer = RawAnswer("408 Request Timeout", "the request did not arrive in time");
      } else if (connection.too_large()) {
        answer = RawAnswer("431 Request Header Fields Too Large", "the request line is too long");
      }
      if (!answer.empty()) (void)connection.write(answer);
    }
    if (!done || closed || stopping_) break;
  }
  current = nullptr;
}

// The arguments of Server::process_request have changed over the library's versions.
bool HttpServer::ProcessRequest(HttpConnection& connection, bool& closed) {
  // All of an answer is sent always: some versions take a range past its end for an error.
  const auto no_ranges = [](httplib::Request& request) { request.ranges.clear(); };
  const auto process = [&](auto& self) {
    if constexpr (requires { self.process_request(connection, false, closed, no_ranges); }) {
      return self.process_request(connection, stopping_, closed, no_ranges);
    } else {
      std::string remote, local;
      int remote_port = 0, local_port = 0;
      connection.get_remote_ip_and_port(remote, remote_port);
      connection.get_local_ip_and_port(local, local_port);
      return self.process_request(connection, remote, remote_port, local, local_port, stopping_,
                                  closed, no_ranges);
    }
  };
  return process(*this);
}

}  // namespace lariat::examples
