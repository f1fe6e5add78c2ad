-- wrk's request: the body of the file BODY, whose first JSON bytes are a KServe v2 header where JSON is not 0.
local file = assert(io.open(os.getenv("BODY"), "rb"))
wrk.method = "POST"
wrk.path = os.getenv("TARGET")
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/octet-stream"
if os.getenv("JSON") ~= "0" then
  wrk.headers["Inference-Header-Content-Length"] = os.getenv("JSON")
end
