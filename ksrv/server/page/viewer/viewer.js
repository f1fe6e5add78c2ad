// Shows openapi.json with Swagger UI, with the token that the page at / keeps in this tab.

const TOKEN = "ksrv.token";

function withToken(request) {
  const token = sessionStorage.getItem(TOKEN);
  // Swagger UI may send requests to whatever its document names; the token is for this server only.
  const isOwn = new URL(request.url, location.href).origin === location.origin;
  if (token && isOwn) request.headers.Authorization = `Bearer ${token}`;
  return request;
}

function askForTokenIfRefused(response) {
  if (response.status === 401) document.getElementById("needs-token").hidden = false;
  return response;
}

SwaggerUIBundle({
  url: new URL("openapi.json", location.href).href,
  dom_id: "#routes",
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "list",
  filter: true,
  tryItOutEnabled: true,
  requestInterceptor: withToken,
  responseInterceptor: askForTokenIfRefused,
  validatorUrl: null,
});
