-- wrk's request: an infer message made of MODEL, SHAPE and BYTES from the environment. HEADS=client
-- sends the header fields that common Python clients send by default; the minimal head otherwise.
local model, shape, bytes = os.getenv("MODEL"), os.getenv("SHAPE"), tonumber(os.getenv("BYTES"))
local json = string.format(
  '{"inputs":[{"name":"x","shape":[%s],"datatype":"FP32","parameters":{"binary_data_size":%d}}],' ..
  '"outputs":[{"name":"y","parameters":{"binary_data":true}}]}', shape, bytes)
wrk.method = "POST"
wrk.path = "/v2/models/" .. model .. "/infer"
wrk.body = json .. string.rep("\0", bytes)
wrk.headers["Inference-Header-Content-Length"] = tostring(#json)
if os.getenv("HEADS") == "client" then
  wrk.headers["User-Agent"] = "python-requests/2.32.5"
  wrk.headers["Accept-Encoding"] = "gzip, deflate"
  wrk.headers["Accept"] = "*/*"
  wrk.headers["Connection"] = "keep-alive"
  wrk.headers["Content-Type"] = "application/octet-stream"
end
